"""Log messages for clients that want them: what is wrong with the indexes that a call of theirs was answered from.

In the handshake era a client says once from which level on (`logging/setLevel`), in the stateless era with each call.
Nothing is sent to who has not asked, and nothing of what the server does for others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import structlog
from mcp import types

from kgserve.errors import KgserveError
from kgserve.mcp.calls import Context, default_store, visit_of
from kgserve.mcp.present import counted
from kgserve.ops.graph import Graphs, Threads
from kgserve.ops.metrics import standing_of

log = structlog.get_logger()

LEVELS: tuple[types.LoggingLevel, ...] = (
    "debug",
    "info",
    "notice",
    "warning",
    "error",
    "critical",
    "alert",
    "emergency",
)
LOGGER = "kgserve.indexes"
SEARCHING = frozenset({"search_knowledge", "search_batch", "get_context"})
_VIEWS = ("keyword", "vector")
_LEVEL = "kgserve.log_level"
_META_LEVEL = "io.modelcontextprotocol/logLevel"


class Notice(NamedTuple):
    """Something to be told, and how bad it is."""

    level: types.LoggingLevel
    message: str


class Notices:
    """Tells of the indexes of some stores."""

    def __init__(self, graphs: Graphs, threads: Threads) -> None:
        self._graphs = graphs
        self._threads = threads

    async def set_level(self, context: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
        """Remember from which level on a session of the handshake era wants to be told."""
        _state(context)[_LEVEL] = params.level
        return types.EmptyResult()

    async def after(self, context: Context, params: types.CallToolRequestParams) -> None:
        """Tell what concerns a call that was just answered, on the stream of its answer."""
        level = _wanted(context)
        if level is None or params.name not in SEARCHING:
            return
        given = params.arguments or {}
        store = given.get("index") or given.get("store") or default_store(context)
        if not isinstance(store, str):
            return
        graphs = self._graphs.seen_by(visit_of(context).caller)
        try:
            for notice in await self._threads.read(lambda: list(_of_store(graphs, store))):
                if LEVELS.index(notice.level) >= LEVELS.index(level):
                    await _send(context, notice, store)
        except Exception:  # the call has its answer
            log.exception("client_not_told", store=store)


def _of_store(graphs: Graphs, name: str) -> Iterator[Notice]:
    indexer = graphs.indexer
    if indexer is None:
        return
    try:
        with graphs.graph(name).lease() as store:
            found = standing_of(store, indexer, None)
    except KgserveError:
        return  # the answer of the call says why
    for view in _VIEWS:
        if found.failing.get(view):
            yield Notice("error", f"the {view} index fails; searches use what it has so far, the server's log says why")
        if lag := found.lags.get(view):
            behind = counted(lag, "commit")
            yield Notice("notice", f"the {view} index is {behind} behind; at_least makes a search wait for one")
    if indexer.embedder.degraded:
        yield Notice("warning", "there is no embedding model: meaning is judged by words and letters alone")


def _wanted(context: Context) -> types.LoggingLevel | None:
    """From which level on the caller wants to be told; None when it has not asked."""
    asked: Any = (context.meta or {}).get(_META_LEVEL) if context.protocol_version >= "2026" else _level(context)
    return asked if asked in LEVELS else None


def _level(context: Context) -> Any:
    return _state(context).get(_LEVEL)


def _state(context: Context) -> dict[str, Any]:
    """What is kept of a session until it ends."""
    return context.session._connection.state  # noqa: SLF001


async def _send(context: Context, notice: Notice, store: str) -> None:
    data: Mapping[str, str] = {"store": store, "message": notice.message}
    params = types.LoggingMessageNotificationParams(level=notice.level, logger=LOGGER, data=data)
    await context.session.send_notification(
        types.LoggingMessageNotification(params=params), related_request_id=context.request_id
    )
