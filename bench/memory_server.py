"""The official MCP memory server beside kgserve, each spoken to as an editor does, in one run.

`python -m bench.memory_server INDEX_JS`, where that is `dist/index.js` of the npm package
@modelcontextprotocol/server-memory. What is left of two editors' writes and what is found; how long lists, writes and
searches take, and the first list of tools; and what ten editors take in memory.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from bench.editors import Editor, bridge
from bench.measure import Report, clock, times
from kgserve.platform.server_discovery import find, stop

WRITES = 100
TEXT = "The sluice of lock 7 opens at dawn"
QUERIES = ("sluice of lock", "lock sluice", "when does the lock open?")
SIZES = (200, 5_000)
ROUNDS = 30
STARTS = 5
EDITORS = 10
BATCH = 500
START_MOST = 3.0

_numbers = count()


class Side(msgspec.Struct, frozen=True):
    """One of the two: how an editor starts it in a folder, and the tools that write, list and search."""

    name: str
    command: Callable[[Path], list[str]]
    writing: str
    listing: str
    searching: str

    @property
    def ours(self) -> bool:
        """Whether it is kgserve, which has a server behind the editors' processes."""
        return self.name == "kgserve"

    def entities(self, names: Iterable[str]) -> dict[str, Any]:
        """The arguments that write entities of these names."""
        if self.ours:
            return {"nodes": [{"id": name, "type": "lock", "content": TEXT} for name in names], "edges": []}
        return {"entities": [{"name": name, "entityType": "lock", "observations": [TEXT]} for name in names]}

    @contextmanager
    def editor(self, folder: Path) -> Generator[Editor]:
        """An editor that has begun."""
        variables = {"MEMORY_FILE_PATH": str(folder / "memory.jsonl"), "KGSERVE_PORT": "0"}
        with Editor(self.command(folder), {**os.environ, **variables}) as editor:
            editor.open()
            yield editor


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 1 when kgserve has lost a write."""
    parser = argparse.ArgumentParser(prog="python -m bench.memory_server", description="Beside the memory server.")
    parser.add_argument("index_js", help="the memory server's dist/index.js")
    script = parser.parse_args(arguments).index_js
    ours = Side("kgserve", _bridge, "inject_knowledge_graph", "list_entities", "search_knowledge")
    theirs = Side("memory server", lambda _: ["node", script], "create_entities", "read_graph", "search_nodes")
    report = Report("kgserve beside the official MCP memory server")
    with tempfile.TemporaryDirectory() as folder:
        for side in (theirs, ours):
            with _ended(Path(folder, side.name, "editors")) as shared:
                compare(side, shared, report)
        _measure(report, ours, theirs, Path(folder))
    report.show()
    return int(report.wrong)


def compare(side: Side, folder: Path, report: Report) -> None:
    """Two editors write at once, then one of them searches: how many entities are left, and what is found."""
    with side.editor(folder) as one, side.editor(folder) as other, ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda pair: _write_all(side, *pair), [(one, "a"), (other, "b")]))
        kept = len(_found(one, side.listing, {"limit": 2 * WRITES} if side.ours else {}))
        what = f"{side.name}: left of {2 * WRITES} entities of two editors"
        report.check(what, str(kept), kept == 2 * WRITES) if side.ours else report.fact(what, str(kept))
        for query in QUERIES:
            hits = _found(one, side.searching, {"query": query})
            report.fact(f"{side.name}: {query}", "found" if hits else "nothing")


def _measure(report: Report, ours: Side, theirs: Side, folder: Path) -> None:
    with ExitStack() as stack:
        sides = (ours, theirs)
        homes = {side.name: stack.enter_context(_ended(folder / side.name / "measured")) for side in sides}
        _starts(report, sides, homes)
        editors = {side.name: stack.enter_context(side.editor(homes[side.name])) for side in sides}
        _in_turn(report, "tools/list", sides, lambda side: _asked(editors[side.name].ask("tools/list")))
        held = 0
        for size in SIZES:
            for side in sides:
                _fill(side, editors[side.name], range(held, size))
            held = size
            _in_turn(
                report, f"write of one entity, {size:,} there", sides, lambda side: _write(side, editors[side.name])
            )
        query = {"query": "sluice of lock"}
        _in_turn(
            report,
            f"search, {held:,} there",
            sides,
            lambda side: _found(editors[side.name], side.searching, query),
        )
        more = {
            side.name: [stack.enter_context(side.editor(homes[side.name])) for _ in range(EDITORS - 1)]
            for side in sides
        }
        processes = {
            side.name: _serving(side, homes[side.name], [editors[side.name], *more[side.name]]) for side in sides
        }
        for way, field in (("resident", "Rss"), ("shared pages divided", "Pss")):
            figure, baseline = (sum(_mebibytes(each, field) for each in processes[side.name]) for side in sides)
            what = f"memory of {EDITORS} editors, {way}"
            _compared(report, what, f"{figure:.0f} MiB", f"{baseline:.0f} MiB", figure / baseline)
        resident, own = (_mebibytes(editors[ours.name].process.pid, field) for field in ("Rss", "Private_Dirty"))
    report.notes += [
        f"memory: of kgserve the server and its engine included; a bridge is {resident:.1f}, {own:.1f} its own",
        f"first list: from starting the editor's process, {STARTS} times in turn, each in an empty folder",
    ]


def _starts(report: Report, sides: tuple[Side, Side], homes: dict[str, Path]) -> None:
    ours, theirs = sides
    took: dict[str, list[float]] = {"cold": [], "warm": [], "call": [], theirs.name: []}
    with ours.editor(homes[ours.name]) as editor:
        _asked(editor.call("list_stores", {}))
    for number in range(STARTS):
        with _ended(homes[ours.name].with_name(f"cold-{number}")) as fresh:
            took["cold"].append(clock(lambda fresh=fresh: _first_list(ours, fresh)))
            took["call"].append(clock(lambda fresh=fresh: _first_call(ours, fresh)))
        took["warm"].append(clock(lambda: _first_list(ours, homes[ours.name])))
        took[theirs.name].append(clock(lambda: _first_list(theirs, homes[theirs.name])))
    baseline = times(took[theirs.name])
    for what, key in (("a server to be started", "cold"), ("a server that runs", "warm")):
        figure = times(took[key])
        report.compare(
            f"start to first tools/list, {what}",
            figure.fine,
            baseline.fine,
            figure.p50 / baseline.p50,
            ("≤", START_MOST),
        )
    report.fact("first call of a tool right after the cold list", times(took["call"]).fine)


def _first_list(side: Side, folder: Path) -> None:
    with side.editor(folder) as editor:
        _asked(editor.ask("tools/list"))


def _first_call(side: Side, folder: Path) -> None:
    with side.editor(folder) as editor:
        _asked(editor.call("list_stores", {}))


def _in_turn(report: Report, what: str, sides: tuple[Side, Side], work: Callable[[Side], object]) -> None:
    took: dict[str, list[float]] = {side.name: [] for side in sides}
    for _ in range(ROUNDS):
        for side in sides:
            took[side.name].append(clock(lambda side=side: work(side)))
    figure, baseline = (times(took[side.name][2:]) for side in sides)
    _compared(report, what, figure.fine, baseline.fine, figure.p50 / baseline.p50)


def _compared(report: Report, what: str, figure: str, baseline: str, ratio: float) -> None:
    report.compare(what, figure, baseline, ratio, ("≤", 1.0))


def _fill(side: Side, editor: Editor, numbers: range) -> None:
    for start in range(numbers.start, numbers.stop, BATCH):
        names = [f"lock-{number}" for number in range(start, min(start + BATCH, numbers.stop))]
        _asked(editor.call(side.writing, side.entities(names)))


def _write(side: Side, editor: Editor) -> None:
    _asked(editor.call(side.writing, side.entities([f"one-{next(_numbers)}"])))


def _write_all(side: Side, editor: Editor, which: str) -> None:
    for number in range(WRITES):
        _asked(editor.call(side.writing, side.entities([f"{which}-{number}"])))


def _found(editor: Editor, tool: str, arguments: dict[str, Any]) -> list[Any]:
    """What a tool lists, in whichever field it does."""
    answer = _asked(editor.call(tool, arguments))["structuredContent"]
    return next(answer[each] for each in ("hits", "nodes", "entities") if each in answer)


def _asked(answer: dict[str, Any]) -> dict[str, Any]:
    assert "result" in answer, answer
    assert not answer["result"].get("isError"), answer
    return answer["result"]


def _bridge(folder: Path) -> list[str]:
    return bridge(folder, "--store", "memory")


@contextmanager
def _ended(folder: Path) -> Generator[Path]:
    """A folder in which no server is left at the end of the block."""
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        deadline = time.monotonic() + 30
        while (folder / "server.lock").exists() and find(folder) is None and time.monotonic() < deadline:
            time.sleep(0.1)  # it may still be on its way
        stop(folder)


def _serving(side: Side, home: Path, editors: list[Editor]) -> list[int]:
    """All processes that serve these editors."""
    processes = [editor.process.pid for editor in editors]
    if side.ours and (server := find(home)) is not None and server.pid is not None:
        processes += [server.pid, *_below(server.pid)]
    return processes


def _below(process: int) -> list[int]:
    """The processes that a process has started, and those that they have."""
    children: list[int] = []
    for task in Path(f"/proc/{process}/task").iterdir():
        children += map(int, (task / "children").read_text().split())
    return [each for child in children for each in (child, *_below(child))]


def _mebibytes(process: int, field: str) -> float:
    """What a process has in memory, by one of the kernel's ways of counting."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{field}:")).split()[1]) / 1024


if __name__ == "__main__":
    sys.exit(main())
