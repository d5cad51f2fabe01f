"""Calls of tools: find the tool, check the arguments, run it in a thread, answer; report progress meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, TypeVar

import anyio
import anyio.to_thread
import msgspec
import structlog
from anyio import CapacityLimiter
from mcp import MCPError, types
from mcp.server.context import ServerRequestContext

from kgserve.access.authentication import RequestContext
from kgserve.access.caller import Hidden
from kgserve.decoding import convert
from kgserve.errors import ConflictManual, FieldError, Forbidden, Internal, InvalidInput, KgserveError
from kgserve.idempotent import IDEMPOTENT
from kgserve.mcp.memory_server import MEMORY_SERVER_TOOLS
from kgserve.mcp.present import Reply, conflict, present
from kgserve.mcp.schemas import Arguments, input_schema, schema
from kgserve.mcp.tools import TOOLS, Tool
from kgserve.model.requests import place_of
from kgserve.ops.graph import Graphs
from kgserve.ops.waiting import Shares, patiently

log = structlog.get_logger()

_CALLABLE = TOOLS | {tool.name: tool for tool in MEMORY_SERVER_TOOLS}

Context = ServerRequestContext[Any, Any]
T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)

READ_THREADS = 16
WRITE_THREADS = 16
STORE_HEADER = "kgserve-store"
STORE_PARAMETER = "store"
PROGRESS_SECONDS = 1.0


class Threads:
    """The threads in which tools may block on the stores."""

    def __init__(self) -> None:
        self._reads = CapacityLimiter(READ_THREADS)
        self._writes = CapacityLimiter(WRITE_THREADS)
        self._statements = Shares()

    async def read(self, work: Callable[[], T]) -> T:
        """The result of ``work``, run in one of the threads for reads."""
        return await patiently(lambda: anyio.to_thread.run_sync(work, limiter=self._reads))

    async def write(self, work: Callable[[], T]) -> T:
        """The result of ``work``, run in one of the threads for writes."""
        return await patiently(lambda: anyio.to_thread.run_sync(work, limiter=self._writes))

    async def statement(self, caller: str, work: Callable[[], T]) -> T:
        """The result of ``work``, a statement of a caller's, run in one of the threads for those."""
        return await self._statements.run(caller, work)


class Call(NamedTuple):
    """One call of a tool, not checked yet, and who makes it."""

    tool: Tool[Any]
    arguments: Mapping[str, Any] | None
    default_store: str | None
    visit: RequestContext
    asker: str

    @property
    def named_store(self) -> str | None:
        """The store that it is about, as far as can be said before its arguments are checked."""
        index = (self.arguments or {}).get("index")
        return index if isinstance(index, str) else self.default_store


class Calls:
    """The tools over some stores."""

    def __init__(self, graphs: Graphs, threads: Threads) -> None:
        self._graphs = graphs
        self._threads = threads
        self._listed = types.ListToolsResult(tools=[_described(tool) for tool in TOOLS.values()])

    async def list_tools(self, _: Context, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        """All of them, on one page."""
        return self._listed

    def input_schema(self, name: str) -> dict[str, Any] | None:
        """The schema of a tool's arguments."""
        tool = _CALLABLE.get(name)
        return None if tool is None else input_schema(tool.arguments)

    async def call(self, context: Context, params: types.CallToolRequestParams) -> Any:
        """The result of a tool, in the wire's form: the SDK takes that, too, and need not make it from a model.

        Raises MCPError for a tool that there is not.
        """
        tool = _CALLABLE.get(params.name)
        if tool is None:
            names = ", ".join(TOOLS)
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name[:80]!r}; there are {names}")
        call = Call(tool, params.arguments, default_store(context), visit_of(context), _asker(context))
        answering = self._observed(call)
        if context.meta is None or context.meta.get("progress_token") is None:
            return await answering
        return await _reporting(context, tool, answering)

    async def _observed(self, call: Call) -> dict[str, Any]:
        observation, started, tool = self._graphs.pool.observation, time.perf_counter(), call.tool
        outcome = "broken_off"
        try:
            with observation.span(f"tool {tool.name}", {"kgserve.tool": tool.name}):
                result = await self._allowed(call)
            outcome = "error" if result["isError"] else "ok"
            return result
        finally:
            observation.called(tool.name, outcome, time.perf_counter() - started)

    async def _allowed(self, call: Call) -> dict[str, Any]:
        """The answer, if the caller's role is enough for one; on record like that of an HTTP operation."""
        tool, act = call.tool, f"tool {call.tool.name}"
        try:
            call.visit.caller.require(tool.role)
        except Forbidden as error:
            call.visit.denied("403", act=act, store=call.named_store)
            return _failure(explained(error))
        result = await self._answer(call)
        if tool.administers:
            call.visit.administered("failed" if result["isError"] else "done", act=act, store=call.named_store)
        return result

    async def _answer(self, call: Call) -> dict[str, Any]:
        """Every exception is an answer here: clients of the handshake era would be sent its text."""
        try:
            return await self._run(call, self._graphs.seen_by(call.visit.caller))
        except Internal:
            log.exception("internal_error", tool=call.tool.name)
        except Hidden as error:
            call.visit.denied("404", act=f"tool {call.tool.name}", store=error.store)
            return _failure(explained(error))
        except ConflictManual as error:
            return _result(conflict(error)) | {"isError": True}
        except KgserveError as error:
            return _failure(explained(error))
        except Exception:
            log.exception("internal_error", tool=call.tool.name)
        return _failure(internal_error())

    async def _run(self, call: Call, graphs: Graphs) -> dict[str, Any]:
        if call.tool.runs_statement:
            return await self._threads.statement(call.asker, partial(_read, graphs, call))
        if call.tool.effect == "reads":
            return await self._threads.read(partial(_read, graphs, call))
        answer, given, store = await self._threads.write(partial(_begin, graphs, call))
        if isinstance(answer, Future):
            # Shielded: who is cut off must not cancel what the store has taken.
            answer = await asyncio.shield(asyncio.wrap_future(answer))
        return _result(present(answer, given, store))


def _begin(graphs: Graphs, call: Call) -> tuple[Any, msgspec.Struct, str]:
    """The answer of a tool, or what will become it, with the arguments and the store that it was asked with."""
    given = read_arguments(call.arguments, call.tool.arguments)
    store = store_of(given.index, call.default_store) if isinstance(given, Arguments) else ""
    return call.tool.run(graphs.graph(store), given), given, store


def _read(graphs: Graphs, call: Call) -> dict[str, Any]:
    return _result(present(*_begin(graphs, call)))


def store_of(index: str | msgspec.UnsetType, default: str | None) -> str:
    """The store that a call means. Raises InvalidInput when it says none and there is no default."""
    store = index or default
    if not store:
        message = "say which store is meant: there is no default store on this connection; list_stores names them"
        raise InvalidInput(f"index: {message}", (FieldError("index", message),))
    return store


def read_arguments(values: Mapping[str, Any] | None, into: type[S]) -> S:
    """``values`` as ``into``. Raises InvalidInput naming the place; JSON knows neither NaN nor half characters."""
    given = {name: value for name, value in (values or {}).items() if value is not None}
    if type(sequence := given.get("as_of")) is int:
        # Answers give sequences as numbers, and so models send them.
        given["as_of"] = str(sequence)
    try:
        json.dumps(given, allow_nan=False, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidInput("the arguments hold a surrogate without its other half") from None
    except ValueError:
        path = _not_finite(given, "") or ""
        raise InvalidInput(f"{path}: is not a finite number", (FieldError(path, "is not a finite number"),)) from None
    except RecursionError:
        raise InvalidInput("the arguments are nested too deeply") from None
    try:
        return convert(given, into)
    except msgspec.ValidationError as error:
        fault = place_of(error)
        raise InvalidInput(f"{fault.path}: {fault.message}" if fault.path else fault.message, (fault,)) from None
    except RecursionError:
        raise InvalidInput("the arguments are nested too deeply") from None


def _not_finite(value: object, path: str) -> str | None:
    if isinstance(value, float):
        return None if math.isfinite(value) else path
    if isinstance(value, dict):
        places = ((f"{path}.{key}" if path else str(key), item) for key, item in value.items())
    elif isinstance(value, list):
        places = ((f"{path}[{number}]", item) for number, item in enumerate(value))
    else:
        return None
    return next((found for place, item in places if (found := _not_finite(item, place))), None)


def visit_of(context: Context) -> RequestContext:
    """The request as access sees it. Raises MCPError for one that has not come through the door."""
    if context.request is None:
        raise MCPError(types.INVALID_REQUEST, "this server is spoken to over HTTP")
    return context.request.scope["state"]["request_context"]


def _asker(context: Context) -> str:
    """Who shares with whom: a session is a caller of its own."""
    session = context.request.headers.get("mcp-session-id", "") if context.request is not None else ""
    return f"{visit_of(context).asker} {session}"


def default_store(context: Context) -> str | None:
    """The store that the connection names: a header of the request, or else a parameter of the URL."""
    request = context.request
    if request is None:
        return None
    return request.headers.get(STORE_HEADER) or request.query_params.get(STORE_PARAMETER)


def explained(error: KgserveError) -> str:
    """An error as text: the sentence, and every place beyond the first that it names."""
    places = error.errors[1:] if isinstance(error, InvalidInput) else ()
    return "\n".join([str(error), *(f"{place.path}: {place.message}" for place in places)])


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


def _described(tool: Tool[Any]) -> types.Tool:
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=input_schema(tool.arguments),
        output_schema=schema(tool.answer),
        annotations=types.ToolAnnotations(
            title=tool.title,
            read_only_hint=tool.effect == "reads",
            destructive_hint=tool.effect == "deletes",
            idempotent_hint=tool.name in IDEMPOTENT,
            open_world_hint=False,
        ),
    )


def _result(reply: Reply) -> dict[str, Any]:
    values = msgspec.to_builtins(reply.values)
    return {
        "content": [{"type": "text", "text": reply.text}],
        "structuredContent": values | {"more": reply.more} if reply.more else values,
        "isError": False,
        "resultType": "complete",
    }


def _failure(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": True, "resultType": "complete"}
