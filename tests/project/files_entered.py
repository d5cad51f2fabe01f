"""Print which files of kgserve one request of each kind enters: `python -m tests.project.files_entered`."""

from __future__ import annotations

import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from tests.project.reading import TOP
from tests.server.http.serving import PATIENCE, serving
from tests.server.mcp.talking import Stateless

PACKAGE = f"{TOP / 'kgserve'}/"
ANSWERING = ("server", "AnyIO worker", "asyncio_", "writer-")
"""Prefixes of the names of threads that answer requests."""
IGNORED_FILES = {f"{PACKAGE}platform/structured_log.py", f"{PACKAGE}server/app.py"}
"""The access log is written after the answer, and the server checks itself some times a second."""
API = "/api/memory/traced"
TIMES = 3
CYPHER = "MATCH (n:Entity {id: 'a'}) SET n.content = $text RETURN n.id"


class Tracer:
    """Note which files are entered in threads that start while it is installed."""

    def __init__(self) -> None:
        self.entered: set[str] = set()
        self.noting = False

    def __call__(self, frame: Any, _: str, __: object) -> None:
        """Note the file of a called function. See `sys.settrace`."""
        path = frame.f_code.co_filename
        if not self.noting or not path.startswith(PACKAGE) or path in IGNORED_FILES:
            return
        if threading.current_thread().name.startswith(ANSWERING):
            self.entered.add(path.removeprefix(PACKAGE))


def request(http: httpx.Client, name: str, time: int) -> httpx.Request:
    """Build a request of one kind, whose content differs each ``time``."""
    match name:
        case "health":
            return http.build_request("GET", "/health")
        case "list_tags":
            return http.build_request("GET", f"{API}/tags")
        case "inject":
            node = {"id": "a", "type": "hen", "content": f"brown {time}", "tags": ["x"]}
            return http.build_request("POST", f"{API}/inject", json={"nodes": [node]})
        case "search":
            return http.build_request("POST", f"{API}/search", json={"query": "brown", "at_least": TIMES})
        case "cypher":
            body = {"query": CYPHER, "params": {"text": f"white {time}"}, "mode": "write"}
            return http.build_request("POST", f"{API}/cypher", json=body)
        case _:
            return Stateless(http).request("tools/call", {"name": "list_tags", "arguments": {"index": "traced"}})


def trace(data: Path) -> dict[str, set[str]]:
    """Return the files that a request of each kind enters: the fewest of several tries.

    The first one builds caches, and the end of the one before may fall into it.
    """
    tracer, found = Tracer(), dict[str, set[str]]()
    before = threading.gettrace()
    threading.settrace(tracer)
    try:
        with serving(data) as running, httpx.Client(base_url=running.url, timeout=PATIENCE) as http:
            for name in ("inject", "list_tags", "search", "mcp", "health", "cypher"):
                entered: list[set[str]] = []
                for time in range(TIMES):
                    asked, tracer.entered = request(http, name, time), set()
                    entered.append(tracer.entered)
                    tracer.noting = True
                    answer = http.send(asked)
                    tracer.noting = False
                    assert answer.status_code == 200, answer.text
                found[name] = min(entered, key=len)
    finally:
        threading.settrace(before)
    return found


def main() -> None:
    """Print the number of files for each request, and their names."""
    with TemporaryDirectory(prefix="kgserve-") as folder:
        for name, files in trace(Path(folder) / "data").items():
            print(name, len(files), *sorted(files))  # noqa: T201


if __name__ == "__main__":
    main()
