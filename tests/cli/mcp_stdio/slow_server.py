"""A real MCP server, built with the SDK, with slow tools. It registers as the server of a data folder.

Argument: the data folder. Reports the events of its calls on standard error.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from kgserve.platform.data_folder_lock import DataFolderLock

server = MCPServer("slow")
meetings: dict[str, asyncio.Barrier] = {}


@server.tool()
async def wait(seconds: float, context: Context) -> str:
    """Report progress every 50 ms."""
    say("begun")
    try:
        for step in range(int(seconds * 20)):
            await context.report_progress(step)
            await asyncio.sleep(0.05)
    except asyncio.CancelledError:
        say("cancelled")
        raise
    return "waited"


@server.tool()
async def meet(place: str, calls: int, steps: int, context: Context) -> str:
    """Report progress, and wait until ``calls`` calls are at this place."""
    for step in range(steps):
        await context.report_progress(step)
    await meetings.setdefault(place, asyncio.Barrier(calls)).wait()
    return "met"


@server.tool()
async def received(context: Context) -> dict[str, str]:
    """Return the headers of the request."""
    return dict(context.headers or {})


@server.custom_route("/ready", ["GET"])
async def ready(_: Request) -> PlainTextResponse:
    return PlainTextResponse("ready")


def say(word: str) -> None:
    print(word, file=sys.stderr, flush=True)  # noqa: T201 - read by the test


def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, DataFolderLock(Path(sys.argv[1])) as lock:
        app = server.streamable_http_app()
        config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=1)
        lock.publish(f"http://127.0.0.1:{listener.getsockname()[1]}/", "the-token")
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
