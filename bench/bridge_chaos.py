"""Ten bridges call tools while their server is killed, stopped, and its server.json taken away.

`python -m bench.bridge_chaos [--calls 2000] [--seed 1]`. Nothing that was acknowledged may be missing, nothing may be
there twice, and no call may take longer than its limit.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from bench.editors import HANDSHAKE, STATELESS, Editor, bridge
from bench.measure import Report, times
from bench.server import Client
from kgserve.cli.mcp_stdio.connection import LONG, limit_of
from kgserve.platform.server_discovery import SERVER_FILE, ensure, find, holder, stop

BRIDGES = 10
CALLS = 2_000
STORE = "chaos"
LIMIT = 30.0
"""Seconds that a call may take."""

SLACK = 3.0
"""Seconds more in which the answer has to come: processes wait for their turn as well."""

PAUSE = 0.25
"""Seconds between two calls of a bridge, so that all blows fall among them."""

BETWEEN_BLOWS = (1.0, 3.0)
STOPPED = (0.5, 9.0)

Blow = Literal["kill", "stop", "lose"]
BLOWS: tuple[Blow, ...] = ("kill", "stop", "lose")
TOOLS = ("put_node", "put_node", "put_subgraph", "inject_knowledge_graph")

SETTINGS = {
    "KGSERVE_PORT": "0",
    "KGSERVE_EMBEDDING_PROVIDER": "hashing",
    "KGSERVE_CHECK_INTERVAL": "0",
    "KGSERVE_CALL_TIMEOUT": f"{LIMIT:g}",
}


class Call(msgspec.Struct, frozen=True):
    """One call: the words that its nodes hold, how many those are, whether it was acknowledged, and its time."""

    words: str
    nodes: int
    tool: str
    acknowledged: bool
    seconds: float
    said: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 1 when something was lost or doubled, or a call took too long."""
    parser = argparse.ArgumentParser(prog="python -m bench.bridge_chaos", description="Bridges and a server that dies.")
    parser.add_argument("--calls", type=int, default=CALLS, help="calls of all bridges together")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        report = run(Path(folder), given.calls, given.seed)
    report.show()
    return int(report.wrong)


def run(folder: Path, calls: int = CALLS, seed: int = 1) -> Report:
    """The bench, in an empty folder."""
    data, log = folder / "data", folder / "bridges.log"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KGSERVE_")} | SETTINGS
    done = threading.Event()
    with ThreadPoolExecutor(BRIDGES + 1) as threads:
        striking = threads.submit(_strike, data, done, random.Random(seed))
        try:
            each = calls // BRIDGES
            begun = [threads.submit(_edit, data, environment, log, number, each) for number in range(BRIDGES)]
            made = [call for editor in begun for call in editor.result()]
        finally:
            done.set()
        blows = striking.result()
    held = _held(data, environment)
    report = Report(f"{len(made)} calls through {BRIDGES} bridges, with {sum(blows.values())} blows to their server")
    _judge(report, made, held, blows)
    return report


def _judge(report: Report, made: list[Call], held: Counter[str], blows: Counter[Blow]) -> None:
    lost = [call.words for call in made if call.acknowledged and held[call.words] < call.nodes]
    doubled = [call.words for call in made if held[call.words] > call.nodes]
    unanswered = [call for call in made if not call.acknowledged]
    halved = [call.words for call in unanswered if 0 < held[call.words] < call.nodes and call.tool != "put_subgraph"]
    longest = max(call.seconds for call in made)
    for blow in BLOWS:
        report.fact(f"blows: {blow}", str(blows[blow]))
    report.fact("calls that were acknowledged", str(len(made) - len(unanswered)))
    report.fact("calls that were told a reason instead", str(len(unanswered)))
    report.fact("time of a call", str(times([call.seconds * 1000 for call in made])))
    report.check("acknowledged and lost", f"{len(lost)} {lost[:3]}", not lost)
    report.check("there twice", f"{len(doubled)} {doubled[:3]}", not doubled)
    report.check("there in part", f"{len(halved)} {halved[:3]}", not halved)
    over = [call for call in made if call.seconds > limit_of(call.tool, LIMIT) + SLACK]
    report.check(
        f"over the limit of {LIMIT:g} s, or {LONG} times that", f"{len(over)}, longest {longest:.1f} s", not over
    )
    reasons = Counter(re.sub(r"\(?process \d+\)?|-CONT \d+|https?://\S+", "…", call.said)[:80] for call in unanswered)
    report.notes += [f"{count} of {reason} …" for reason, count in reasons.most_common(5)]


def _edit(data: Path, environment: dict[str, str], log: Path, number: int, calls: int) -> list[Call]:
    """What one editor does, and what it was told."""
    pauses = random.Random(number)
    version = STATELESS if number % 2 else HANDSHAKE
    with Editor(bridge(data, "--store", STORE), environment, version=version, log=log) as editor:
        editor.open()
        made: list[Call] = []
        for each in range(calls):
            made.append(_call(editor, TOOLS[each % len(TOOLS)], f"words-{number}-{each}"))
            time.sleep(pauses.uniform(0, 2 * PAUSE))
        return made


def _call(editor: Editor, tool: str, words: str) -> Call:
    started = time.perf_counter()
    answer = editor.call(tool, _arguments(tool, words))
    seconds = time.perf_counter() - started
    result: dict[str, Any] = answer.get("result", {})
    acknowledged = "error" not in answer and not result.get("isError")
    said = answer["error"]["message"] if "error" in answer else str(result.get("content", ""))[:200]
    return Call(words, 2 if tool == "put_subgraph" else 1, tool, acknowledged, seconds, said)


def _arguments(tool: str, words: str) -> dict[str, Any]:
    match tool:
        case "put_node":
            return {"kind": "note", "content": words}
        case "put_subgraph":
            nodes = [{"ref": ref, "kind": "note", "content": words} for ref in "ab"]
            return {"nodes": nodes, "edges": [{"from_ref": "a", "to_ref": "b", "kind": "beside"}]}
        case _:
            return {"nodes": [{"id": words, "type": "note", "content": words}], "edges": []}


def _strike(data: Path, done: threading.Event, choice: random.Random) -> Counter[Blow]:
    """Harm the server now and then until all is done."""
    struck: Counter[Blow] = Counter()
    while not done.wait(choice.uniform(*BETWEEN_BLOWS)):
        process = holder(data)
        if not process or find(data) is None:
            continue
        blow = choice.choice(BLOWS)
        with suppress(ProcessLookupError):
            _struck(blow, process, data, choice)
            struck[blow] += 1
    return struck


def _struck(blow: Blow, process: int, data: Path, choice: random.Random) -> None:
    match blow:
        case "kill":
            os.kill(process, signal.SIGKILL)
        case "lose":
            (data / SERVER_FILE).unlink(missing_ok=True)
        case "stop":
            os.kill(process, signal.SIGSTOP)
            time.sleep(choice.uniform(*STOPPED))
            os.kill(process, signal.SIGCONT)


def _held(data: Path, environment: dict[str, str]) -> Counter[str]:
    """How many nodes hold which words in the end, and as many more as were written twice."""
    os.environ.update({name: value for name, value in environment.items() if name.startswith("KGSERVE_")})
    server = ensure(data)
    try:
        with Client(int(server.url.rpartition(":")[2])) as client:
            lines = [line for line in client.export(STORE) if line.get("kind") == "node"]
            return Counter([line["content"] for line in lines for _ in range(line["version"])])
    finally:
        stop(data)


if __name__ == "__main__":
    sys.exit(main())
