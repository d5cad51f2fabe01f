"""Calls of tools: find the tool, check the arguments, run it in a thread, answer; report progress meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar

import anyio
import msgspec
import structlog
from mcp import MCPError, types
from mcp.server.context import ServerRequestContext

from kgserve.errors import ConflictManual, Internal, InvalidInput, KgserveError
from kgserve.mcp.arguments import read_arguments
from kgserve.mcp.schemas import input_schema, schema
from kgserve.mcp.tool import Tool
from kgserve.mcp.tools import TOOLS
from kgserve.mcp.version_tools import kept_beside
from kgserve.mcp.work import Pending, Reply, Work, settled

log = structlog.get_logger()

Context = ServerRequestContext[Any, Any]
T = TypeVar("T")

STORE_HEADER = "kgserve-store"
STORE_PARAMETER = "store"
PROGRESS_SECONDS = 1.0


class Calls:
    """The tools over some stores."""

    def __init__(self, work: Work, tools: Mapping[str, Tool] = TOOLS) -> None:
        self._work = work
        self._tools = tools
        self._listed = types.ListToolsResult(tools=[_described(tool) for tool in tools.values()])

    async def list_tools(self, _: Context, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        """All of them, on one page."""
        return self._listed

    def input_schema(self, name: str) -> dict[str, Any] | None:
        """The schema of a tool's arguments."""
        tool = self._tools.get(name)
        return None if tool is None else input_schema(tool.arguments)

    async def call(self, context: Context, params: types.CallToolRequestParams) -> Any:
        """The result of a tool, in the wire's form: the SDK takes that, too, and need not make it from a model.

        Raises MCPError for a tool that there is not.
        """
        tool = self._tools.get(params.name)
        if tool is None:
            names = ", ".join(self._tools)
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name[:80]!r}; there are {names}")
        answering = self._answer(tool, params.arguments, default_store(context))
        if context.meta is None or context.meta.get("progress_token") is None:
            return await answering
        return await _reporting(context, tool, answering)

    async def _answer(self, tool: Tool, arguments: Mapping[str, Any] | None, store: str | None) -> dict[str, Any]:
        """Every exception is an answer here: clients of the handshake era would be sent its text."""
        try:
            if tool.effect == "reads":
                return await self._work.read(self._run_to_the_end, tool, arguments, store)
            begun = await self._work.write(self._run, tool, arguments, store)
            return _result(begun if isinstance(begun, Reply) else await settled(begun))
        except Internal:
            log.exception("internal_error", tool=tool.name)
        except ConflictManual as error:
            return _result(kept_beside(error)) | {"isError": True}
        except KgserveError as error:
            return _failure(explained(error))
        except Exception:
            log.exception("internal_error", tool=tool.name)
        return _failure(internal_error())

    def _run(self, tool: Tool, arguments: Mapping[str, Any] | None, store: str | None) -> Reply | Pending[Any]:
        return tool.run(self._work, store, read_arguments(arguments, tool.arguments))

    def _run_to_the_end(self, tool: Tool, arguments: Mapping[str, Any] | None, store: str | None) -> dict[str, Any]:
        done = self._run(tool, arguments, store)
        return _result(done if isinstance(done, Reply) else done.reply(done.future.result()))


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


async def _reporting(context: Context, tool: Tool, answering: Awaitable[T]) -> T:
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


def _described(tool: Tool) -> types.Tool:
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
            idempotent_hint=tool.idempotent,
            open_world_hint=False,
        ),
    )


def _result(reply: Reply) -> dict[str, Any]:
    return {
        "content": [{"type": "text", "text": reply.text}],
        "structuredContent": msgspec.to_builtins(reply.values),
        "isError": False,
        "resultType": "complete",
    }


def _failure(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": True, "resultType": "complete"}
