"""Calls of tools: find the tool, read the arguments, run it in a thread, answer; report progress meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Mapping, Sequence
from concurrent.futures import Future
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qs

import anyio
import msgspec
import structlog
from mcp import MCPError, types
from mcp.server.context import ServerRequestContext

from kgserve.access.authentication import Hidden, RequestContext
from kgserve.errors import (
    ConflictManual,
    FieldError,
    Forbidden,
    Internal,
    InvalidInput,
    KgserveError,
    NoStore,
    ServedElsewhere,
)
from kgserve.forwarding import Forwarder
from kgserve.idempotent import IDEMPOTENT
from kgserve.mcp import schemas
from kgserve.mcp.arguments import explained, read_arguments, store_named, store_of
from kgserve.mcp.elsewhere import asked_elsewhere
from kgserve.mcp.entity_memory import RecallMemories
from kgserve.mcp.json_schema import input_schema
from kgserve.mcp.memory_tools import Recall
from kgserve.mcp.present import Reply, conflict, counted, present
from kgserve.mcp.repeats import Repeats, made_call
from kgserve.mcp.tools import Tool
from kgserve.mcp.toolsets import TOOLS, called, chosen
from kgserve.model.versioned_names import FIELD_NAMES, with_versioned_names
from kgserve.ops import search
from kgserve.ops.graph import Graph, Graphs, Threads

log = structlog.get_logger()

Context = ServerRequestContext[Any, Any]
T = TypeVar("T")

PROGRESS_SECONDS = 1.0

Searching = schemas.Search | schemas.SearchBatch | schemas.Context | RecallMemories | Recall
"""What is asked of the indexes."""

OWN_WRITES_SECONDS = 0.5
"""A search waits so long for the indexes to have seen what its caller wrote last."""

MAX_WRITERS = 4_096
"""Callers whose last writes are remembered, each for each store; the longest ago goes first."""


class Wishes(NamedTuple):
    """What a connection asks for: by headers of each request, or by parameters of the URL."""

    store: str
    tools: str
    answers: str

    @property
    def text_alone(self) -> bool:
        """Whether answers shall come without values."""
        return self.answers == "text"


class Call(NamedTuple):
    """One call of a tool, not checked yet, and who makes it. ``notes``: what was put right in the arguments."""

    tool: Tool[Any]
    arguments: Mapping[str, Any] | None
    wishes: Wishes
    visit: RequestContext
    asker: str
    notes: list[str]
    headers: Mapping[str, str]

    @property
    def named_store(self) -> str | None:
        """The store that it is about, as far as can be said before its arguments are checked."""
        return store_named(self.arguments or {}) or self.wishes.store or None

    @property
    def writes(self) -> bool:
        """Whether it may change the store."""
        return self.tool.writes(self.arguments)


class OwnWrites:
    """What callers wrote last, by caller and store, for the next search. Written on the event loop alone."""

    def __init__(self) -> None:
        self._last: OrderedDict[tuple[str, str], int] = OrderedDict()

    def remember(self, asker: str, store: str, answer: object) -> None:
        """A write that was answered with the commit that holds it."""
        sequence = getattr(answer, "sequence", None)
        if isinstance(sequence, int):
            self._last[asker, store] = sequence
            self._last.move_to_end((asker, store))
            while len(self._last) > MAX_WRITERS:
                self._last.popitem(last=False)

    def last(self, asker: str, store: str) -> int:
        """The last commit of the caller; 0 for none that is known."""
        return self._last.get((asker, store), 0)


class Calls:
    """The tools over some stores."""

    def __init__(self, graphs: Graphs, threads: Threads) -> None:
        self._graphs = graphs
        self._threads = threads
        self._written = OwnWrites()
        self._repeats = Repeats()
        self.forwarder = Forwarder(graphs.pool.placement)

    async def list_tools(self, context: Context, _: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        """Those that the connection asks for, on one page. Raises MCPError for a set that there is not."""
        try:
            return _listed(_wished(context).tools)
        except InvalidInput as error:
            raise MCPError(types.INVALID_PARAMS, str(error)) from None

    def input_schema(self, name: str) -> dict[str, Any] | None:
        """The schema of a tool's arguments."""
        tool = TOOLS.get(name)
        return None if tool is None else input_schema(tool.arguments)

    async def call(self, context: Context, params: types.CallToolRequestParams) -> Any:
        """The result of a tool, in the wire's form: the SDK takes that, too, and need not make it from a model.

        Raises MCPError for a tool that there is not.
        """
        wishes = _wished(context)
        tool = called(params.name, wishes.tools, params.arguments)
        if tool is None:
            names = ", ".join(TOOLS)
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name[:80]!r}; there are {names}")
        call = Call(tool, params.arguments, wishes, visit_of(context), _asker(context), [], _headers(context))
        made = made_call(_headers(context), tool.name, params.arguments) if call.writes else None
        answering = self._repeats.once(call.visit.asker, made, partial(self._observed, call))
        if context.meta is None or context.meta.get("progress_token") is None:
            return await answering
        return await _reporting(context, tool, answering)

    async def _observed(self, call: Call) -> dict[str, Any]:
        observation, started, tool = self._graphs.pool.observation, time.perf_counter(), call.tool
        outcome = "broken_off"
        try:
            with observation.span(f"tool {tool.name}", {"kgserve.tool": tool.name}):
                result = await self._allowed(call)
            if call.wishes.text_alone:
                result.pop("structuredContent", None)
            outcome = "error" if result["isError"] else "ok"
            return result
        finally:
            observation.called(tool.name, outcome, time.perf_counter() - started)

    async def _allowed(self, call: Call) -> dict[str, Any]:
        """The answer, if the caller's role is enough for one; on record like that of an HTTP operation."""
        tool, act = call.tool, f"tool {call.tool.name}"
        try:
            call.visit.caller.require(tool.role(call.arguments))
        except Forbidden as error:
            call.visit.denied("403", act=act, store=call.named_store)
            return _failure(explained(error))
        result = await self._answer(call)
        if tool.role(call.arguments) == "admin":
            call.visit.administered("failed" if result["isError"] else "done", act=act, store=call.named_store)
        return result

    async def _answer(self, call: Call) -> dict[str, Any]:
        """Every exception is an answer here: clients of the handshake era would be sent its text."""
        try:
            return await self._found(call, self._graphs.seen_by(call.visit.caller))
        except Internal:
            log.exception("internal_error", tool=call.tool.name)
        except ConflictManual as error:
            reply = _named(conflict(error), (call.arguments or {}).get(FIELD_NAMES))
            return _result(reply, call.named_store or "", call.notes) | {"isError": True}
        except KgserveError as error:
            return _failure(explained(error))
        except Exception:
            log.exception("internal_error", tool=call.tool.name)
        return _failure(internal_error())

    async def _found(self, call: Call, graphs: Graphs) -> dict[str, Any]:
        """The answer; where a store is not there, the names of the caller's."""
        try:
            return await self._run(call, graphs)
        except ServedElsewhere as error:
            asked = {"name": call.tool.name, "arguments": call.arguments or {}}
            caller, headers = call.visit.caller, call.headers
            return await asked_elsewhere(self.forwarder, error, caller, ("tools/call", asked), headers)
        except NoStore as error:
            if isinstance(error, Hidden):
                call.visit.denied("404", act=f"tool {call.tool.name}", store=error.store)
            if error.store == call.wishes.store and (empty := _nothing(call)) is not None:
                return _result(empty, call.wishes.store, call.notes)
            return _failure(await self._threads.read(partial(explained, error, graphs.pool.names)))

    async def _run(self, call: Call, graphs: Graphs) -> dict[str, Any]:
        begin = partial(self._begin, graphs, call)
        if call.tool.runs_statement:
            return await self._threads.kinds["statements"].run(lambda: _said(call, *begin()), call.asker)
        if not call.writes:
            return await self._threads.read(lambda: _said(call, *begin()))
        answer, given, store = await self._threads.kinds["writes"].run(begin)
        if isinstance(answer, Future):
            # Shielded: who is cut off must not cancel what the store has taken.
            answer = await asyncio.shield(asyncio.wrap_future(answer))
        self._written.remember(call.asker, store, answer)
        return _said(call, answer, given, store)

    def _begin(self, graphs: Graphs, call: Call) -> tuple[Any, msgspec.Struct, str]:
        """The answer of a tool, or what will become it, with the arguments and the store that it was asked with."""
        tool = call.tool
        given = read_arguments(call.arguments, tool.arguments, call.notes)
        if tool.writes_with and getattr(given, tool.writes_with) and not call.writes:
            # Whether a call writes, and so what its key must allow, was decided by the name as it was sent.
            message = "makes this a write, so it must be sent under this very name"
            raise InvalidInput(f"{tool.writes_with}: {message}", (FieldError(tool.writes_with, message),))
        index = (given.index if isinstance(given, schemas.Arguments) else "") or ""
        default = call.wishes.store
        store = index or default if tool.without_store else store_of(index, default, graphs.pool.names)
        graph = graphs.graph(store, is_default=not index)
        if isinstance(given, Searching) and not _at_a_moment(given):
            return self._sees_own(graphs, graph, call, given), given, graph.name
        return tool.run(graph, given), given, graph.name

    def _sees_own(self, graphs: Graphs, graph: Graph, call: Call, given: Searching) -> Any:
        """The answer of a search once the indexes have what its caller wrote last, or have been waited for."""
        for name in (graph.name, *(getattr(given, "also", None) or ())):
            if last := self._written.last(call.asker, name):
                search.wait_for(graphs.graph(name), last, OWN_WRITES_SECONDS)
        answer: Any = call.tool.run(graph, given)
        return Searched(answer, search.behind(graph, answer.index_sequence))


def _at_a_moment(given: msgspec.Struct) -> bool:
    return bool(getattr(given, "at_least", None) or getattr(given, "as_of", None))


class Searched(NamedTuple):
    """The answer of a search, and how many commits it has not seen."""

    answer: Any
    behind: int


def _nothing(call: Call) -> Reply | None:
    """What is said of a default store that is still to be made; None of one that the call names: it must be there."""
    if call.tool.nothing is None or not call.wishes.store or store_named(call.arguments or {}):
        return None
    hint = f"nothing has been stored here yet; {call.tool.maker} makes the store"
    return Reply(f'There is no store "{call.wishes.store}" yet.', dict(call.tool.nothing), hint=hint)


def _said(call: Call, answer: Any, given: msgspec.Struct, store: str) -> dict[str, Any]:
    reply = present(answer.answer if isinstance(answer, Searched) else answer, given, store)
    reply = _named(reply, isinstance(given, schemas.Naming) and given.field_names)
    if isinstance(answer, Searched) and answer.behind:
        late = f"the indexes have yet to see the last {counted(answer.behind, 'commit')}; what is newest may be missing"
        reply = reply._replace(hint="; ".join(filter(None, (reply.hint, late))))
    return _result(reply, store, call.notes)


def _named(reply: Reply, versioned: object) -> Reply:
    """A reply with the names of fields that were asked for."""
    return reply._replace(values=with_versioned_names(reply.values)) if versioned else reply


def visit_of(context: Context) -> RequestContext:
    """The request as access sees it. Raises MCPError for one that has not come through the door."""
    if context.request is None:
        raise MCPError(types.INVALID_REQUEST, "this server is spoken to over HTTP")
    return context.request.scope["state"]["request_context"]


def _asker(context: Context) -> str:
    """Who shares with whom: a session is a caller of its own."""
    session = _headers(context).get("mcp-session-id", "")
    return f"{visit_of(context).asker} {session}"


def _headers(context: Context) -> Mapping[str, str]:
    return context.request.headers if context.request is not None else {}


def default_store(context: Context) -> str | None:
    """The store that the connection names."""
    return _wished(context).store or None


def _wished(context: Context) -> Wishes:
    return Wishes("", "", "") if context.request is None else wished(context.request.scope)


def wished(scope: Mapping[str, Any]) -> Wishes:
    """What a connection asks for, by headers such as `Kgserve-Store` or parameters such as `?store=`."""
    headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
    query = parse_qs(scope["query_string"].decode("latin-1"))
    return Wishes(*(headers.get(f"kgserve-{name}".encode()) or query.get(name, [""])[0] for name in Wishes._fields))


def check_wishes(wishes: Wishes) -> None:
    """Raises InvalidInput for tools, or a form of answers, that there are not."""
    if wishes.tools:
        chosen(wishes.tools)
    if wishes.answers not in ("", "text", "both"):
        message = "is text, for answers without values, or both"
        raise InvalidInput(f"answers: {message}", (FieldError("answers", message),))


def internal_error() -> str:
    """All that callers hear of a defect."""
    request_id = structlog.contextvars.get_contextvars().get("request_id")
    return f"internal error; the server's log holds the details under request id {request_id}"


async def _reporting(context: Context, tool: Tool[Any], answering: Awaitable[T]) -> T:
    """Wait for an answer; say at once what is being done, and every second that it still is."""
    started = time.monotonic()

    async def go_on() -> None:
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            while True:
                await asyncio.sleep(PROGRESS_SECONDS)
                await context.session.report_progress(round(time.monotonic() - started, 3), None, tool.doing)

    await context.session.report_progress(0.0, None, tool.doing)
    reports = asyncio.create_task(go_on())
    try:
        return await answering
    finally:
        reports.cancel()
        await asyncio.wait({reports})


@lru_cache(64)
def _listed(tools: str) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[_described(tool) for tool in chosen(tools)])


def _described(tool: Tool[Any]) -> types.Tool:
    reads = tool.effect == "reads" and not tool.writes_with
    # Of a tool that reads they say nothing.
    writing = {
        "destructive_hint": None if reads else tool.effect in ("overwrites", "deletes"),
        "idempotent_hint": None if reads else tool.name in IDEMPOTENT,
    }
    hints = types.ToolAnnotations.model_validate({"read_only_hint": reads, "open_world_hint": False} | writing)
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=input_schema(tool.arguments),
        annotations=hints,
    )


def _result(reply: Reply, store: str, notes: Sequence[str]) -> dict[str, Any]:
    text, values = reply.said(store, notes)
    return {
        "content": [{"type": "text", "text": text}],
        "structuredContent": values,
        "isError": False,
        "resultType": "complete",
    }


def _failure(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": True, "resultType": "complete"}
