"""How many files of kgserve one request enters: what has to be read by somebody who wants to follow it.

The numbers may fall. Who has to raise one has made a request harder to follow, and should say why.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.project.reading import TOP
from tests.server.http.serving import PATIENCE, serving
from tests.server.mcp.talking import Stateless

PACKAGE = f"{TOP / 'kgserve'}/"
ANSWERING = ("server", "AnyIO worker", "asyncio_", "writer-")
"""Beginnings of names of threads that answer; others take in what was written, when they come to it."""
BESIDE = {f"{PACKAGE}platform/log.py", f"{PACKAGE}server/app.py"}
"""The access line is written once the answer is on its way: before or after its client has it.

And the server looks after itself some times a second, so within any request that takes that long.
"""
API = "/api/memory/traced"
TIMES = 3
CYPHER = "MATCH (n:Entity {id: 'a'}) SET n.content = $text RETURN n.id"
MOST = {"health": 6, "list_tags": 17, "inject": 41, "search": 36, "cypher": 52, "mcp": 28}


class Tracer:
    """Notes which files are entered in threads that begin while it is installed."""

    def __init__(self) -> None:
        self.entered: set[str] = set()
        self.noting = False

    def __call__(self, frame: Any, _: str, __: object) -> None:
        """Told of each call of a Python function; answers nothing, to be told of no more within it."""
        path = frame.f_code.co_filename
        if not self.noting or not path.startswith(PACKAGE) or path in BESIDE:
            return
        if threading.current_thread().name.startswith(ANSWERING):
            self.entered.add(path.removeprefix(PACKAGE))


def request(http: httpx.Client, name: str, time: int) -> httpx.Request:
    """A request of one kind; what writes writes something else each ``time``."""
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
    """The files that one of a few requests of each kind enters, in the threads that answer it: the fewest.

    What answered the one before may be at its end still, and the first of a kind finds things out.
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


@pytest.fixture(scope="module")
def entered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    return trace(tmp_path_factory.mktemp("traced") / "data")


@pytest.mark.parametrize("name", MOST)
def test_files_entered(entered: dict[str, set[str]], name: str) -> None:
    print(name, len(entered[name]), *sorted(entered[name]))  # noqa: T201 - shown with -s, and when there are too many
    assert len(entered[name]) <= MOST[name]
