"""Tool calls: find the tool, decode the arguments, run it in a thread, answer, and report progress.

A repeated call gets the answer of the first. A call about a store of another node is forwarded.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Generator, Mapping, Sequence
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
from kgserve.graph.compat.versioned_nodes_field_names import FIELD_NAMES_PARAMETER, rename_to_versioned_fields
from kgserve.graph.search import node_search
from kgserve.graph.search.search_notices import explain_index_lag
from kgserve.graph.store_handle import CallerStoreHandles, StoreHandle
from kgserve.platform.access.authentication import CALLER_HEADER, AuthenticatedCaller, HiddenStore, RequestContext
from kgserve.platform.codecs import json_decoder
from kgserve.platform.idempotency import IdempotencyKey
from kgserve.platform.version import __version__
from kgserve.server.admission import AdmissionControl
from kgserve.server.cluster_http_client import ClusterNodeHttpClient
from kgserve.server.mcp.entity_memory_tools import RecallMemoriesArguments
from kgserve.server.mcp.entity_version_write_tools import build_conflicting_head_tool_reply
from kgserve.server.mcp.memory_tools import RecallArguments
from kgserve.server.mcp.search_tools import GetContextArguments, SearchBatchArguments, SearchKnowledgeArguments
from kgserve.server.mcp.shared_tool_arguments import FieldNamesToolArguments, StoreToolArguments
from kgserve.server.mcp.tool_argument_decoder import (
    decode_tool_arguments,
    find_tool_store_argument,
    format_mcp_tool_error,
    resolve_tool_call_store,
)
from kgserve.server.mcp.tool_call_short_ids import (
    contains_generated_id,
    expand_short_ids_in_tool_arguments,
    shorten_ids_in_answer,
)
from kgserve.server.mcp.tool_definition import McpTool
from kgserve.server.mcp.tool_input_schema import build_tool_input_schema
from kgserve.server.mcp.tool_replies import ToolReply, build_tool_reply
from kgserve.server.mcp.toolsets import (
    TOOLS,
    build_list_tools_result,
    defines_structured_content,
    describe_tool_name_shared_by_toolsets,
    resolve_called_tool,
    select_mcp_tools_by_toolset_or_name,
)

T = TypeVar("T")

CALL_HEADER = "kgserve-call"
AGE_HEADER = "kgserve-call-age"

_CALL_ID = re.compile(r"[!-~]{16,128}")


def get_tool_call_idempotency_key(
    headers: Mapping[str, str], tool: str, arguments: Mapping[str, Any] | None
) -> IdempotencyKey | None:
    """Return the idempotency key of a call, or None without a call id; it includes the tool and the arguments."""
    given = headers.get(CALL_HEADER, "")
    if not _CALL_ID.fullmatch(given):
        return None
    try:
        content = msgspec.json.encode([tool, arguments])
    except (TypeError, ValueError, RecursionError):
        return None  # such arguments are refused later
    return IdempotencyKey(f"{given} {blake2b(content, digest_size=16).hexdigest()}", _age(headers))


def _encoded_size(result: dict[str, Any]) -> int:
    return len(msgspec.json.encode(result))


def _age(headers: Mapping[str, str]) -> float:
    with suppress(ValueError):
        age = float(headers.get(AGE_HEADER, "0"))
        return max(age, 0.0) if math.isfinite(age) else 0.0
    return 0.0


_PROTOCOL_VERSION = "2026-07-28"
"""Protocol revision for forwarded requests. It is stateless, because sessions belong to one node."""
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


async def forward_mcp_method_to_store_owner(
    forwarder: ClusterNodeHttpClient,
    served: errors.ServedElsewhere,
    caller: AuthenticatedCaller,
    asked: tuple[str, Mapping[str, Any]],
    headers: Mapping[str, str],
) -> dict[str, Any]:
    """Forward a method call to the node that serves the store, on behalf of the caller, and return its result.

    asked: the method and its parameters. Raises Unavailable, and the MCPError that the other node returns.
    """
    method, params = asked
    meta = {
        f"{_META_PREFIX}protocolVersion": _PROTOCOL_VERSION,
        f"{_META_PREFIX}clientCapabilities": {},
        f"{_META_PREFIX}clientInfo": {"name": "kgserve", "version": __version__},
    }
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    sent = {each: headers[each] for each in _FORWARDED_HEADERS if each in headers} | {
        CALLER_HEADER: msgspec.json.encode(caller).decode("ascii"),
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": _PROTOCOL_VERSION,
        "mcp-method": method,
        "mcp-name": encode_header_value(params.get("name") or params["uri"]),
    }
    async with forwarder.send_request(served, ("POST", "/mcp"), sent, msgspec.json.encode(request)) as response:
        answer = _decode(await response.read())
    if answer.error is not None:
        raise MCPError(answer.error.code, answer.error.message, answer.error.data)
    if answer.result is None:
        raise errors.Unavailable(f"node {served.node!r}, which serves the store, answered with {response.status}")
    return answer.result


Context = ServerRequestContext[Any, Any]

PROGRESS_INTERVAL_SECONDS = 1.0

IndexQueryArguments = (
    SearchKnowledgeArguments | SearchBatchArguments | GetContextArguments | RecallMemoriesArguments | RecallArguments
)
"""Arguments of the tools that query the indexes."""

MAX_REMEMBERED_WRITERS = 4_096
"""Maximum number of remembered last writes, one per caller and store; the oldest is evicted first."""


class McpConnectionOptions(NamedTuple):
    """Options of a connection, from headers of each request or parameters of the URL."""

    store: str
    tools: str
    answers: str

    def is_text_only(self, tool: McpTool[Any], arguments: Mapping[str, Any] | None) -> bool:
        """Return whether the answer to a call contains text only, without structured content."""
        is_asked_for = self.answers == "both" or bool((arguments or {}).get("detail"))
        return self.answers == "text" or not (is_asked_for or defines_structured_content(tool))


class ToolCall(NamedTuple):
    """One tool call before validation, and its caller. ``notes``: corrections of the arguments."""

    tool: McpTool[Any]
    arguments: Mapping[str, Any] | None
    wishes: McpConnectionOptions
    visit: RequestContext
    accounting_name: str
    notes: list[str]
    headers: Mapping[str, str]

    @property
    def named_store(self) -> str | None:
        """Store that the call names, as far as known before its arguments are validated."""
        return find_tool_store_argument(self.arguments or {}) or self.wishes.store or None

    @property
    def writes(self) -> bool:
        """True if the call may change the store."""
        return self.tool.writes(self.arguments)


class LastWriteSequencesByCaller:
    """Sequence of each caller's last write per store, for read-your-writes in searches.

    Modified on the event loop only.
    """

    def __init__(self) -> None:
        self._last: OrderedDict[tuple[str, str], int] = OrderedDict()

    def record_write(self, asker: str, store: str, answer: object) -> None:
        """Remember the commit sequence in the answer to a write."""
        sequence = getattr(answer, "sequence", None)
        if isinstance(sequence, int):
            self._last[asker, store] = sequence
            self._last.move_to_end((asker, store))
            while len(self._last) > MAX_REMEMBERED_WRITERS:
                self._last.popitem(last=False)

    def last(self, asker: str, store: str) -> int:
        """Return the sequence of the caller's last known commit, or 0."""
        return self._last.get((asker, store), 0)


class ToolDispatcher:
    """Dispatcher of tool calls for some stores."""

    def __init__(self, graphs: CallerStoreHandles, threads: AdmissionControl, forwarder: ClusterNodeHttpClient) -> None:
        self._graphs = graphs
        self._threads = threads
        self._written = LastWriteSequencesByCaller()
        self._forwarder = forwarder

    async def list_tools(self, context: Context, _: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        """Return the tools that the connection selected, on one page. Raises MCPError for an unknown toolset."""
        try:
            return build_list_tools_result(_wished(context).tools)
        except errors.InvalidInput as error:
            raise MCPError(types.INVALID_PARAMS, str(error)) from None

    def input_schema(self, name: str) -> dict[str, Any] | None:
        """Return the JSON Schema of a tool's arguments; None for an unknown tool."""
        tool = TOOLS.get(name)
        return None if tool is None else build_tool_input_schema(tool.arguments)

    async def call(self, context: Context, params: types.CallToolRequestParams) -> Any:
        """Call a tool and return its result in wire format, which the SDK accepts without a model.

        Raises MCPError for an unknown tool.
        """
        wishes = _wished(context)
        tool = resolve_called_tool(params.name, wishes.tools)
        if tool is None:
            names = ", ".join(TOOLS)
            raise MCPError(types.INVALID_PARAMS, f"unknown tool {params.name[:80]!r}; the tools are {names}")
        call = ToolCall(
            tool,
            params.arguments,
            wishes,
            get_mcp_request_access_context(context),
            _asker(context),
            [],
            _headers(context),
        )
        made = get_tool_call_idempotency_key(_headers(context), tool.name, params.arguments) if call.writes else None
        answering = self._threads.repeats.run_once(
            call.visit.accounting_name, made, partial(self._measure, call), weigh=_encoded_size
        )
        if context.meta is None or context.meta.get("progress_token") is None:
            return await answering
        return await _report_progress(context, tool, answering)

    async def _measure(self, call: ToolCall) -> dict[str, Any]:
        observation, started, tool = self._graphs.pool.observation, time.perf_counter(), call.tool
        outcome = "broken_off"
        try:
            with observation.span(f"tool {tool.name}", {"kgserve.tool": tool.name}):
                result = await self._authorize(call)
            if call.wishes.is_text_only(tool, call.arguments):
                result.pop("structuredContent", None)
            outcome = "error" if result["isError"] else "ok"
            return result
        finally:
            observation.called(tool.name, outcome, time.perf_counter() - started)

    async def _authorize(self, call: ToolCall) -> dict[str, Any]:
        """Answer the call if the caller's role allows it; audit it like an HTTP operation."""
        tool, act = call.tool, f"tool {call.tool.name}"
        try:
            call.visit.caller.require(tool.role(call.arguments))
        except errors.Forbidden as error:
            call.visit.record_refusal("403", act=act, store=call.named_store)
            return _failure(format_mcp_tool_error(error))
        result = await self._answer(call)
        if tool.role(call.arguments) == "admin":
            call.visit.record_admin_action("failed" if result["isError"] else "done", act=act, store=call.named_store)
        return result

    async def _answer(self, call: ToolCall) -> dict[str, Any]:
        # Every exception becomes an answer; the SDK would send its text to clients of session-based revisions.
        try:
            return await self._dispatch(call, self._graphs.for_caller(call.visit.caller))
        except errors.Internal:
            log.exception("internal_error", tool=call.tool.name)
        except errors.ConflictManual as error:
            reply = _rename_fields(
                build_conflicting_head_tool_reply(error), (call.arguments or {}).get(FIELD_NAMES_PARAMETER)
            )
            return _result(reply, call.named_store or "", call.notes) | {"isError": True}
        except errors.KgserveError as error:
            hint = (
                describe_tool_name_shared_by_toolsets(call.tool, call.wishes.tools)
                if isinstance(error, errors.InvalidInput)
                else ""
            )
            return _failure(format_mcp_tool_error(error) + hint)
        except Exception:
            log.exception("internal_error", tool=call.tool.name)
        return _failure(internal_error_message())

    async def _dispatch(self, call: ToolCall, graphs: CallerStoreHandles) -> dict[str, Any]:
        """Run the call here or at the node that serves the store; for a missing store, list those of the caller."""
        try:
            return await self._run(call, graphs)
        except errors.ServedElsewhere as error:
            asked = {"name": call.tool.name, "arguments": call.arguments or {}}
            caller, headers = call.visit.caller, call.headers
            return await forward_mcp_method_to_store_owner(
                self._forwarder, error, caller, ("tools/call", asked), headers
            )
        except errors.NoStore as error:
            if isinstance(error, HiddenStore):
                call.visit.record_refusal("404", act=f"tool {call.tool.name}", store=error.store)
            if error.store == call.wishes.store and (empty := _empty_reply(call)) is not None:
                return _result(empty, call.wishes.store, call.notes)
            return _failure(await self._threads.read(partial(format_mcp_tool_error, error, graphs.pool.names)))

    async def _run(self, call: ToolCall, graphs: CallerStoreHandles) -> dict[str, Any]:
        begin = partial(self._begin, graphs, call)
        if call.tool.runs_statement:
            return await self._threads.kinds["statements"].run(
                lambda: _present_result(call, *begin()), call.accounting_name
            )
        if not call.writes:
            return await self._threads.read(lambda: _present_result(call, *begin()))
        async with self._threads.turns.one(call.accounting_name):
            answer, given, graph = await self._threads.kinds["writes"].run(begin)
            if isinstance(answer, Future):
                # Shielded: a disconnect must not cancel a write that the store has accepted.
                answer = await asyncio.shield(asyncio.wrap_future(answer))
        self._written.record_write(call.accounting_name, graph.name, answer)
        reply = _present_reply(answer, given, graph.name)
        if contains_generated_id(reply.text) or contains_generated_id(reply.hint):
            # The write is done: its answer must not fail because the store is busy, or has moved.
            with suppress(errors.KgserveError):
                reply = await self._threads.read(lambda: _shorten_reply_ids(call, reply, graph))
        return _result(reply, graph.name, call.notes)

    def _begin(self, graphs: CallerStoreHandles, call: ToolCall) -> tuple[Any, msgspec.Struct, StoreHandle]:
        """Return the answer of a tool, or its future, with the decoded arguments and the store."""
        tool = call.tool
        given = decode_tool_arguments(call.arguments, tool.arguments, call.notes)
        if tool.writes_with and getattr(given, tool.writes_with) and not call.writes:
            # The required role was decided by the argument names as they were sent.
            message = "makes this a write, so it must be sent under exactly this name"
            raise errors.InvalidInput.at(tool.writes_with, message)
        index = (given.index if isinstance(given, StoreToolArguments) else "") or ""
        default = call.wishes.store
        store = index or default if tool.without_store else resolve_tool_call_store(index, default, graphs.pool.names)
        graph = graphs.graph(store, is_default=not index)
        if (full := expand_short_ids_in_tool_arguments(graph, call.arguments or {})) is not None:
            given = decode_tool_arguments(full, tool.arguments, [])
        if isinstance(given, IndexQueryArguments) and not _at_a_moment(given):
            return self._search_own_writes(graphs, graph, call, given), given, graph
        return tool.run(graph, given), given, graph

    def _search_own_writes(
        self, graphs: CallerStoreHandles, graph: StoreHandle, call: ToolCall, given: IndexQueryArguments
    ) -> Any:
        """Run a search after waiting for the indexes to include the caller's last write."""
        for name in (graph.name, *(getattr(given, "also", None) or ())):
            if last := self._written.last(call.accounting_name, name):
                node_search.wait_for_latest_words(graphs.graph(name), last)
        answer: Any = call.tool.run(graph, given)
        return SearchAnswerWithIndexLag(answer, node_search.count_unindexed_commits(graph, answer.index_sequence))


def _at_a_moment(given: msgspec.Struct) -> bool:
    return bool(getattr(given, "at_least", None) or getattr(given, "as_of", None))


class SearchAnswerWithIndexLag(NamedTuple):
    """Answer of a search, and the number of commits that the indexes lag behind."""

    answer: Any
    behind: int


def _empty_reply(call: ToolCall) -> ToolReply | None:
    """Return the reply for a default store that does not exist yet; None if the call names the store."""
    if call.tool.nothing is None or not call.wishes.store or find_tool_store_argument(call.arguments or {}):
        return None
    hint = f"nothing has been stored here yet; {call.tool.maker} creates the store"
    return ToolReply(f'There is no store "{call.wishes.store}" yet.', dict(call.tool.nothing), hint=hint)


def _present_result(call: ToolCall, answer: Any, given: msgspec.Struct, graph: StoreHandle) -> dict[str, Any]:
    reply = _shorten_reply_ids(call, _present_reply(answer, given, graph.name), graph)
    return _result(reply, graph.name, call.notes)


def _present_reply(answer: Any, given: msgspec.Struct, store: str) -> ToolReply:
    reply = build_tool_reply(answer.answer if isinstance(answer, SearchAnswerWithIndexLag) else answer, given, store)
    reply = _rename_fields(reply, isinstance(given, FieldNamesToolArguments) and given.field_names)
    if isinstance(answer, SearchAnswerWithIndexLag) and answer.behind:
        reply = reply._replace(hint="; ".join(filter(None, (reply.hint, explain_index_lag(answer.behind)))))
    return reply


def _shorten_reply_ids(call: ToolCall, reply: ToolReply, graph: StoreHandle) -> ToolReply:
    """Return a reply whose text has short ids, unless a statement or another interface defines the text."""
    if not graph.name or call.tool.runs_statement or defines_structured_content(call.tool):
        return reply
    return reply._replace(
        text=shorten_ids_in_answer(graph, reply.text, reply.verbatim), hint=shorten_ids_in_answer(graph, reply.hint)
    )


def _rename_fields(reply: ToolReply, versioned: object) -> ToolReply:
    """Return a reply with the field names of versioned writes, if requested."""
    return reply._replace(values=rename_to_versioned_fields(reply.values)) if versioned else reply


def get_mcp_request_access_context(context: Context) -> RequestContext:
    """Return the access context of the request. Raises MCPError for a request that did not arrive over HTTP."""
    if context.request is None:
        raise MCPError(types.INVALID_REQUEST, "this server accepts requests over HTTP only")
    return context.request.scope["state"]["request_context"]


def _asker(context: Context) -> str:
    """Return the identity for admission control; each session counts as a caller of its own."""
    session = _headers(context).get("mcp-session-id", "")
    return f"{get_mcp_request_access_context(context).accounting_name} {session}"


def _headers(context: Context) -> Mapping[str, str]:
    return context.request.headers if context.request is not None else {}


def get_connection_default_store(context: Context) -> str | None:
    """Return the default store of the connection, or None."""
    return _wished(context).store or None


def _wished(context: Context) -> McpConnectionOptions:
    return (
        McpConnectionOptions("", "", "")
        if context.request is None
        else read_mcp_connection_options(context.request.scope)
    )


def read_mcp_connection_options(scope: Mapping[str, Any]) -> McpConnectionOptions:
    """Return the options of a connection, from headers such as `Kgserve-Store` or parameters such as `?store=`."""
    headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
    query = parse_qs(scope["query_string"].decode("latin-1"))
    return McpConnectionOptions(
        *(headers.get(f"kgserve-{name}".encode()) or query.get(name, [""])[0] for name in McpConnectionOptions._fields)
    )


def validate_mcp_connection_options(wishes: McpConnectionOptions) -> None:
    """Check the options of a connection. Raises InvalidInput for unknown tools or answer formats."""
    if wishes.tools:
        select_mcp_tools_by_toolset_or_name(wishes.tools)
    if wishes.answers not in ("", "auto", "text", "both"):
        raise errors.InvalidInput.at("answers", "must be text, for answers without structured content, both, or auto")


def internal_error_message() -> str:
    """Return the message that callers get for an internal error."""
    request_id = structlog.contextvars.get_contextvars().get("request_id")
    return f"internal error; the server log has the details under request id {request_id}"


log = structlog.get_logger()


@contextmanager
def convert_errors_to_mcp(**about: str) -> Generator[None]:
    """Convert any exception of the block to MCPError; internal errors are logged with the fields ``about``."""
    try:
        yield
    except MCPError:
        raise
    except Exception as error:
        if isinstance(error, errors.KgserveError) and not isinstance(error, errors.Internal):
            raise MCPError(types.INTERNAL_ERROR, str(error)) from None
        log.exception("internal_error", **about)
        raise MCPError(types.INTERNAL_ERROR, internal_error_message()) from None


async def _report_progress(context: Context, tool: McpTool[Any], answering: Awaitable[T]) -> T:
    """Wait for an answer; report progress immediately and then every second."""
    started = time.monotonic()

    async def report_periodically() -> None:
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            while True:
                await asyncio.sleep(PROGRESS_INTERVAL_SECONDS)
                await context.session.report_progress(round(time.monotonic() - started, 3), None, tool.doing)

    await context.session.report_progress(0.0, None, tool.doing)
    reports = asyncio.create_task(report_periodically())
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
