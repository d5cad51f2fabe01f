"""Calls of tools: find the tool, read the arguments, run it in a thread, answer; report progress meanwhile.

A call that is made again gets the answer of the first, and one about a store of another node is asked there.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qs

import anyio
import msgspec
import structlog
from mcp import MCPError, types
from mcp.server.context import ServerRequestContext
from mcp.shared.inbound import encode_header_value

from kgserve import errors
from kgserve.graph.compat.versioned_names import FIELD_NAMES_PARAMETER, with_versioned_names
from kgserve.graph.handle import Graph, Graphs
from kgserve.graph.search import search
from kgserve.platform.access.authentication import CALLER_HEADER, Caller, Hidden, RequestContext
from kgserve.platform.codecs import json_decoder
from kgserve.platform.idempotency import IdempotencyKey, making
from kgserve.platform.version import __version__
from kgserve.server.admission import Admission
from kgserve.server.mcp.argument_fields import Arguments, FieldNameArguments
from kgserve.server.mcp.arguments import explained, read_arguments, store_named, store_of
from kgserve.server.mcp.entity_memory import RecallMemories
from kgserve.server.mcp.input_schema import input_schema
from kgserve.server.mcp.memory_tools import Recall
from kgserve.server.mcp.replies import ToolReply, counted, present
from kgserve.server.mcp.search_tools import ContextArguments, Search, SearchBatch
from kgserve.server.mcp.tool import Tool
from kgserve.server.mcp.toolsets import TOOLS, _listed, called, chosen
from kgserve.server.mcp.version_tools import conflict_reply
from kgserve.server.proxy import NodeProxy

T = TypeVar("T")

CALL_HEADER = "kgserve-call"
AGE_HEADER = "kgserve-call-age"

MAX_REMEMBERED_CALLS = 512
"""Calls that are remembered, each with an answer of at most about 75 kB."""
MAX_REMEMBERED_CALLS_PER_CALLER = 128

_CALL_ID = re.compile(r"[!-~]{16,128}")


def made_call(headers: Mapping[str, str], tool: str, arguments: Mapping[str, Any] | None) -> IdempotencyKey | None:
    """The call that a request is, if it has an id; another tool or other arguments are another call."""
    given = headers.get(CALL_HEADER, "")
    if not _CALL_ID.fullmatch(given):
        return None
    try:
        said = msgspec.json.encode([tool, arguments])
    except (TypeError, ValueError, RecursionError):
        return None  # no such arguments are taken
    return IdempotencyKey(f"{given} {blake2b(said, digest_size=16).hexdigest()}", _age(headers))


class Repeats:
    """The latest calls that had an id, under way and answered.

    Who has lost the answer sends the same call id, and gets the answer of the first.
    """

    def __init__(self) -> None:
        self._calls: OrderedDict[tuple[str, str], asyncio.Task[Any]] = OrderedDict()

    async def once(self, caller: str, made: IdempotencyKey | None, answer: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The answer to a call, which is carried out once while it is remembered.

        It goes on when who has asked is cut off: the answer may be asked for again.
        """
        if made is None:
            return await answer()
        task = self._calls.get((caller, made.key))
        if task is None:
            task = self._begun(made, answer)
            self._keep((caller, made.key), task)
        return await asyncio.shield(task)

    def _begun(self, made: IdempotencyKey, answer: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        before = making.set(made)
        try:
            return asyncio.create_task(answer(), name="call")
        finally:
            making.reset(before)

    def _keep(self, key: tuple[str, str], task: asyncio.Task[Any]) -> None:
        self._calls[key] = task
        task.add_done_callback(lambda done: self._forget_failed(key, done))
        self._forget_oldest([each for each in self._calls if each[0] == key[0]], MAX_REMEMBERED_CALLS_PER_CALLER)
        self._forget_oldest([*self._calls], MAX_REMEMBERED_CALLS)

    def _forget_oldest(self, keys: list[tuple[str, str]], most: int) -> None:
        """Those under way stay, however many they are."""
        done = [each for each in keys if self._calls[each].done()]
        for each in done[: max(0, len(keys) - most)]:
            del self._calls[each]

    def _forget_failed(self, key: tuple[str, str], task: asyncio.Task[Any]) -> None:
        """What was broken off has no answer to repeat."""
        if task.cancelled() or task.exception() is not None:
            self._calls.pop(key, None)


def _age(headers: Mapping[str, str]) -> float:
    with suppress(ValueError):
        age = float(headers.get(AGE_HEADER, "0"))
        return max(age, 0.0) if math.isfinite(age) else 0.0
    return 0.0


_PROTOCOL_VERSION = "2026-07-28"
"""Of the protocol, in which a request needs no session: each node has its own."""
_META_PREFIX = "io.modelcontextprotocol/"
_FORWARDED_HEADERS = (CALL_HEADER, AGE_HEADER, "kgserve-store", "kgserve-tools", "kgserve-answers", "kgserve-hops")


class _Error(msgspec.Struct, frozen=True):
    code: int
    message: str
    data: Any = None


class _ToolAnswer(msgspec.Struct, frozen=True):
    result: dict[str, Any] | None = None
    error: _Error | None = None


_decode = json_decoder(_ToolAnswer).decode


async def asked_elsewhere(
    forwarder: NodeProxy,
    served: errors.ServedElsewhere,
    caller: Caller,
    asked: tuple[str, Mapping[str, Any]],
    headers: Mapping[str, str],
) -> dict[str, Any]:
    """The result of a method, ``asked`` with its parameters in the caller's name, at the node that serves the store.

    Raises Unavailable, and MCPError as that one does.
    """
    method, params = asked
    meta = {
        f"{_META_PREFIX}protocolVersion": _PROTOCOL_VERSION,
        f"{_META_PREFIX}clientCapabilities": {},
        f"{_META_PREFIX}clientInfo": {"name": "kgserve", "version": __version__},
    }
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    told = {each: headers[each] for each in _FORWARDED_HEADERS if each in headers} | {
        CALLER_HEADER: msgspec.json.encode(caller).decode("ascii"),
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": _PROTOCOL_VERSION,
        "mcp-method": method,
        "mcp-name": encode_header_value(params.get("name") or params["uri"]),
    }
    async with forwarder.asked(served, ("POST", "/mcp"), told, msgspec.json.encode(request)) as response:
        answer = _decode(await response.read())
    if answer.error is not None:
        raise MCPError(answer.error.code, answer.error.message, answer.error.data)
    if answer.result is None:
        raise errors.Unavailable(f"node {served.node!r}, which serves the store, answered with {response.status}")
    return answer.result


Context = ServerRequestContext[Any, Any]

PROGRESS_INTERVAL_SECONDS = 1.0

Searching = Search | SearchBatch | ContextArguments | RecallMemories | Recall
"""What is asked of the indexes."""

OWN_WRITES_TIMEOUT_SECONDS = 0.5
"""A search waits so long for the indexes to have seen what its caller wrote last."""

MAX_REMEMBERED_WRITERS = 4_096
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


class ToolCall(NamedTuple):
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
            while len(self._last) > MAX_REMEMBERED_WRITERS:
                self._last.popitem(last=False)

    def last(self, asker: str, store: str) -> int:
        """The last commit of the caller; 0 for none that is known."""
        return self._last.get((asker, store), 0)


class ToolCaller:
    """The tools over some stores."""

    def __init__(self, graphs: Graphs, threads: Admission, forwarder: NodeProxy) -> None:
        self._graphs = graphs
        self._threads = threads
        self._written = OwnWrites()
        self._repeats = Repeats()
        self._forwarder = forwarder

    async def list_tools(self, context: Context, _: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        """Those that the connection asks for, on one page. Raises MCPError for a set that there is not."""
        try:
            return _listed(_wished(context).tools)
        except errors.InvalidInput as error:
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
        call = ToolCall(tool, params.arguments, wishes, visit_of(context), _asker(context), [], _headers(context))
        made = made_call(_headers(context), tool.name, params.arguments) if call.writes else None
        answering = self._repeats.once(call.visit.asker, made, partial(self._observed, call))
        if context.meta is None or context.meta.get("progress_token") is None:
            return await answering
        return await _reporting(context, tool, answering)

    async def _observed(self, call: ToolCall) -> dict[str, Any]:
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

    async def _allowed(self, call: ToolCall) -> dict[str, Any]:
        """The answer, if the caller's role is enough for one; on record like that of an HTTP operation."""
        tool, act = call.tool, f"tool {call.tool.name}"
        try:
            call.visit.caller.require(tool.role(call.arguments))
        except errors.Forbidden as error:
            call.visit.denied("403", act=act, store=call.named_store)
            return _failure(explained(error))
        result = await self._answer(call)
        if tool.role(call.arguments) == "admin":
            call.visit.administered("failed" if result["isError"] else "done", act=act, store=call.named_store)
        return result

    async def _answer(self, call: ToolCall) -> dict[str, Any]:
        """Every exception is an answer here: clients of the handshake era would be sent its text."""
        try:
            return await self._found(call, self._graphs.seen_by(call.visit.caller))
        except errors.Internal:
            log.exception("internal_error", tool=call.tool.name)
        except errors.ConflictManual as error:
            reply = _named(conflict_reply(error), (call.arguments or {}).get(FIELD_NAMES_PARAMETER))
            return _result(reply, call.named_store or "", call.notes) | {"isError": True}
        except errors.KgserveError as error:
            return _failure(explained(error))
        except Exception:
            log.exception("internal_error", tool=call.tool.name)
        return _failure(internal_error())

    async def _found(self, call: ToolCall, graphs: Graphs) -> dict[str, Any]:
        """The answer; where a store is not there, the names of the caller's."""
        try:
            return await self._run(call, graphs)
        except errors.ServedElsewhere as error:
            asked = {"name": call.tool.name, "arguments": call.arguments or {}}
            caller, headers = call.visit.caller, call.headers
            return await asked_elsewhere(self._forwarder, error, caller, ("tools/call", asked), headers)
        except errors.NoStore as error:
            if isinstance(error, Hidden):
                call.visit.denied("404", act=f"tool {call.tool.name}", store=error.store)
            if error.store == call.wishes.store and (empty := _nothing(call)) is not None:
                return _result(empty, call.wishes.store, call.notes)
            return _failure(await self._threads.read(partial(explained, error, graphs.pool.names)))

    async def _run(self, call: ToolCall, graphs: Graphs) -> dict[str, Any]:
        begin = partial(self._begin, graphs, call)
        if call.tool.runs_statement:
            return await self._threads.kinds["statements"].run(lambda: _said(call, *begin()), call.asker)
        if not call.writes:
            return await self._threads.read(lambda: _said(call, *begin()))
        async with self._threads.turns.one(call.asker):
            answer, given, store = await self._threads.kinds["writes"].run(begin)
            if isinstance(answer, Future):
                # Shielded: who is cut off must not cancel what the store has taken.
                answer = await asyncio.shield(asyncio.wrap_future(answer))
        self._written.remember(call.asker, store, answer)
        return _said(call, answer, given, store)

    def _begin(self, graphs: Graphs, call: ToolCall) -> tuple[Any, msgspec.Struct, str]:
        """The answer of a tool, or what will become it, with the arguments and the store that it was asked with."""
        tool = call.tool
        given = read_arguments(call.arguments, tool.arguments, call.notes)
        if tool.writes_with and getattr(given, tool.writes_with) and not call.writes:
            # Whether a call writes, and so what its key must allow, was decided by the name as it was sent.
            message = "makes this a write, so it must be sent under this very name"
            raise errors.InvalidInput.at(tool.writes_with, message)
        index = (given.index if isinstance(given, Arguments) else "") or ""
        default = call.wishes.store
        store = index or default if tool.without_store else store_of(index, default, graphs.pool.names)
        graph = graphs.graph(store, is_default=not index)
        if isinstance(given, Searching) and not _at_a_moment(given):
            return self._sees_own(graphs, graph, call, given), given, graph.name
        return tool.run(graph, given), given, graph.name

    def _sees_own(self, graphs: Graphs, graph: Graph, call: ToolCall, given: Searching) -> Any:
        """The answer of a search once the indexes have what its caller wrote last, or have been waited for."""
        for name in (graph.name, *(getattr(given, "also", None) or ())):
            if last := self._written.last(call.asker, name):
                search.wait_for(graphs.graph(name), last, OWN_WRITES_TIMEOUT_SECONDS)
        answer: Any = call.tool.run(graph, given)
        return SearchOutcome(answer, search.behind(graph, answer.index_sequence))


def _at_a_moment(given: msgspec.Struct) -> bool:
    return bool(getattr(given, "at_least", None) or getattr(given, "as_of", None))


class SearchOutcome(NamedTuple):
    """The answer of a search, and how many commits it has not seen."""

    answer: Any
    behind: int


def _nothing(call: ToolCall) -> ToolReply | None:
    """What is said of a default store that is still to be made; None of one that the call names: it must be there."""
    if call.tool.nothing is None or not call.wishes.store or store_named(call.arguments or {}):
        return None
    hint = f"nothing has been stored here yet; {call.tool.maker} makes the store"
    return ToolReply(f'There is no store "{call.wishes.store}" yet.', dict(call.tool.nothing), hint=hint)


def _said(call: ToolCall, answer: Any, given: msgspec.Struct, store: str) -> dict[str, Any]:
    reply = present(answer.answer if isinstance(answer, SearchOutcome) else answer, given, store)
    reply = _named(reply, isinstance(given, FieldNameArguments) and given.field_names)
    if isinstance(answer, SearchOutcome) and answer.behind:
        late = f"the indexes have yet to see the last {counted(answer.behind, 'commit')}; what is newest may be missing"
        reply = reply._replace(hint="; ".join(filter(None, (reply.hint, late))))
    return _result(reply, store, call.notes)


def _named(reply: ToolReply, versioned: object) -> ToolReply:
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
        raise errors.InvalidInput.at("answers", "is text, for answers without values, or both")


def internal_error() -> str:
    """All that callers hear of a defect."""
    request_id = structlog.contextvars.get_contextvars().get("request_id")
    return f"internal error; the server's log holds the details under request id {request_id}"


log = structlog.get_logger()


@contextmanager
def as_protocol_errors(**about: str) -> Generator[None]:
    """Raises MCPError for whatever the block raises; the log gets what is ``about`` a defect."""
    try:
        yield
    except MCPError:
        raise
    except Exception as error:
        if isinstance(error, errors.KgserveError) and not isinstance(error, errors.Internal):
            raise MCPError(types.INTERNAL_ERROR, str(error)) from None
        log.exception("internal_error", **about)
        raise MCPError(types.INTERNAL_ERROR, internal_error()) from None


async def _reporting(context: Context, tool: Tool[Any], answering: Awaitable[T]) -> T:
    """Wait for an answer; say at once what is being done, and every second that it still is."""
    started = time.monotonic()

    async def go_on() -> None:
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            while True:
                await asyncio.sleep(PROGRESS_INTERVAL_SECONDS)
                await context.session.report_progress(round(time.monotonic() - started, 3), None, tool.doing)

    await context.session.report_progress(0.0, None, tool.doing)
    reports = asyncio.create_task(go_on())
    try:
        return await answering
    finally:
        reports.cancel()
        await asyncio.wait({reports})


def _result(reply: ToolReply, store: str, notes: Sequence[str]) -> dict[str, Any]:
    text, values = reply.said(store, notes)
    return {
        "content": [{"type": "text", "text": text}],
        "structuredContent": values,
        "isError": False,
        "resultType": "complete",
    }


def _failure(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": True, "resultType": "complete"}
