"""Generated Cypher for both engines behind the same face: `python -m bench.cypher_agreement [SEED]`.

Statements that the guard lets through are put to a store of each engine: what reads to an engine file, what writes to
a store that goes through trial, plan and journal. An answer is compared as a bag of rows unless the text has an
ORDER BY, and each difference is given a kind.
"""

from __future__ import annotations

import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec

from bench.cypher_statements import Maker
from bench.cypher_texts import PARAMETERS, READS, WRITES, mutate
from kgserve.cypher.guard import Statement, examine
from kgserve.errors import KgserveError
from kgserve.graph.cypher.write_transaction import run
from kgserve.graph.handle import Graphs
from kgserve.graph.requests import CypherRequest
from kgserve.platform.settings import EngineName, Settings
from kgserve.projections.cypher_engine.engine.engine import Engine, EngineOptions, build
from kgserve.projections.cypher_engine.engine.protocol import Change, FileOptions
from kgserve.storage.model.batch import EdgePut, NodePut, WriteBatch
from kgserve.storage.model.change import StoreState
from kgserve.storage.model.rows import EdgeRow, NodeRow
from kgserve.stores.pool import StorePool

READ, WRITTEN = 2_000, 200
NODES, EDGES = 300, 900
MOST_ROWS = 2_000
SECONDS = 2.0
SHOWN = 3
SPOILT = 0.25
"""The part of the statements that are made by spoiling real ones; most of those are refused."""
SMALL_NODES, SMALL_EDGES = 40, 60
STORE = "s"
CHANCE = re.compile(r"current_date|current_timestamp|gen_random_uuid|db_version|show_tables", re.IGNORECASE)
OF_NOW = re.compile(r"created_at|updated_at", re.IGNORECASE)
_Rows = list[list[Any]]


class Answer(msgspec.Struct):
    """What a statement came to: rows, or an error with its name and its text."""

    columns: list[str] = []
    rows: _Rows = []
    error: str = ""
    said: str = ""


class Differences:
    """How often both were compared, and what differed, by kind, with some examples."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}

    def note(self, text: str, answers: list[Answer]) -> None:
        """Compare the answers to one statement."""
        kind = kind_of(text, *answers)
        one, _ = answers
        self.outcomes["differ" if kind else "both refused" if one.error else "the same rows"] += 1
        if kind:
            self.kinds[kind] += 1
            shown = self.examples.setdefault(kind, [])
            if len(shown) < SHOWN:
                shown.append(f"{text}\n" + "\n".join(f"        {_short(each)}" for each in answers))

    def show(self) -> None:
        """Print everything."""
        for outcome, count in self.outcomes.most_common():
            print(f"{count:7} {outcome}")
        for kind, count in self.kinds.most_common():
            print(f"{count:7} differ: {kind}")
            for example in self.examples[kind]:
                print(f"      {example}")


class File:
    """An engine file that is asked directly; it is made anew when its process is lost."""

    def __init__(self, engine: EngineName, folder: Path) -> None:
        self._options = EngineOptions(
            FileOptions(cache_bytes=128 << 20, memory_bytes=512 << 20), engine=engine, readers=1, read_timeout=SECONDS
        )
        self._path = folder / f"{engine}.file"
        self._engine: Engine | None = None
        self.lost = 0

    def ask(self, statement: Statement) -> Answer:
        """What it answers."""
        engine = self._engine or self._made()
        try:
            with engine.reader() as session, session.reading(statement, MOST_ROWS) as cursor:
                rows: _Rows = [
                    msgspec.json.decode(line) for part in cursor.parts() for line in part.lines.splitlines() if line
                ]
                return Answer(cursor.columns, rows)
        except KgserveError as error:
            return Answer(error=type(error).__name__, said=str(error))
        finally:
            if engine.is_lost:
                self.lost += 1
                self.close()

    def close(self) -> None:
        """Let go of it."""
        if self._engine is not None:
            self._engine.retire()
            self._engine = None
            for path in self._path.parent.glob(f"{self._path.name}*"):
                path.unlink()

    def _made(self) -> Engine:
        nodes, edges = graph(NODES, EDGES)
        state = StoreState(1, 1, 0, len(nodes), len(edges))
        self._engine = build(self._path, Change(None, nodes, [], [], [], edges, [], []), state, self._options)
        return self._engine


def graph(nodes: int, edges: int) -> tuple[list[NodeRow], list[EdgeRow]]:
    """Rows that statements run on."""
    choice = random.Random(0)
    kinds = ("Requirement", "Test", "Document")
    made = [
        NodeRow(
            f"n{n}",
            choice.choice(kinds),
            f"node {n}, " + "words that say something. " * (n % 4) if n % 7 else "",
            f'{{"rank":{n}}}' if n % 5 else "{}",
            1 + n % 3,
            1,
            1_709_200_800_000_000 + n * 86_400_000_000,
            1_735_689_600_000_000,
        )
        for n in range(nodes)
    ]
    keys = {
        (f"n{choice.randrange(nodes)}", f"n{choice.randrange(nodes)}", choice.choice(("verifies", "mentions")))
        for _ in range(edges)
    }
    return made, [EdgeRow(*key, (number % 9) / 8, "{}", 1, 1) for number, key in enumerate(sorted(keys))]


def generated(count: int, seed: int, *, writes: bool) -> Iterator[tuple[str, Statement]]:
    """So many texts that the guard lets through, none that goes by time or chance or asks for a plan."""
    choice, maker, seen = random.Random(seed), Maker(seed), set[str]()
    while len(seen) < count:
        spoilt = choice.random() < SPOILT
        text = (
            mutate(choice, [*WRITES] if writes else [*READS]) if spoilt else maker.write() if writes else maker.read()
        )
        try:
            statement = examine(text, PARAMETERS, writable=writes)
        except KgserveError:
            continue
        by_chance = statement.explains or CHANCE.search(text) or (writes and OF_NOW.search(text))
        if statement.updates == writes and text not in seen and not by_chance:
            seen.add(text)
            yield text, statement


def compare(seed: int) -> None:
    """Put the same statements to both engines and show what differs; what that means has to be judged."""
    with tempfile.TemporaryDirectory(prefix="kgserve-bench-") as folder:
        compare_reads(Path(folder), READ, seed).show()
        compare_writes(Path(folder), WRITTEN, seed).show()


def compare_reads(folder: Path, count: int, seed: int) -> Differences:
    """Statements that read, on one file each."""
    found, files = Differences(), [File(engine, folder) for engine in get_args(EngineName)]
    for number, (text, statement) in enumerate(generated(count, seed, writes=False), 1):
        found.note(text, [file.ask(statement) for file in files])
        if number % 500 == 0:
            print(f"{number} statements, {found.outcomes['differ']} differ", flush=True)
    for engine, file in zip(get_args(EngineName), files, strict=True):
        print(f"{file.lost:7} processes lost by {engine}")
        file.close()
    return found


def compare_writes(folder: Path, count: int, seed: int) -> Differences:
    """Statements that write, each on a store as it was left by the ones before; the rows are compared each time."""
    found = Differences()
    pools = [_pool(folder / f"stores-{engine}", engine) for engine in get_args(EngineName)]
    for text, _statement in generated(count, seed, writes=True):
        found.note(text, [_written(pool, text) for pool in pools])
    for pool in pools:
        pool.close()
    return found


def _pool(folder: Path, engine: EngineName) -> StorePool:
    pool = StorePool(Settings(data_dir=folder, engine=engine, buffer_pool_mb=64, check_interval=0, indexes="none"))
    nodes, edges = graph(SMALL_NODES, SMALL_EDGES)
    puts = [NodePut(n, row.id, row.type, row.content) for n, row in enumerate(nodes)]
    with pool.lease(STORE, create=True) as store:
        store.submit(WriteBatch(nodes=puts, edges=[EdgePut(n, row.key) for n, row in enumerate(edges)])).result(30)
    return pool


def _written(pool: StorePool, text: str) -> Answer:
    """What a statement answers, changes and leaves; without times, which differ."""
    try:
        done = run(Graphs(pool).graph(STORE), CypherRequest(query=text, params=PARAMETERS, mode="write"))
        answer = Answer(done.columns, [[_timeless(value) for value in row] for row in done.rows])
        answer.said = str(msgspec.to_builtins(done.changes))
    except KgserveError as error:
        answer = Answer(error=type(error).__name__, said=str(error))
    with pool.lease(STORE) as store, store.rows.reading() as rows:
        left = [(row.id, row.type, row.content) for row in rows.all_nodes()]
        ties = [(*row.key, row.weight) for row in rows.all_edges()]
    answer.rows.append([sorted(map(repr, left)), sorted(map(repr, ties))])
    return answer


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _timeless(part) for name, part in value.items() if name not in {"created_at", "updated_at"}}
    return [_timeless(part) for part in value] if isinstance(value, list) else value


def kind_of(text: str, one: Answer, other: Answer) -> str:
    """What kind of difference it is; empty for none. Both refused is none, whatever the words."""
    if one.error and other.error:
        both = {one.error, other.error}
        return "" if len(both) == 1 else f"refused as {one.error} and {other.error}"
    if one.error or other.error:
        who, error = ("kuzu", one) if one.error else ("ladybug", other)
        return f"only {who} refuses: {error.error}: {_general(error.said)}"
    return "other changes" if one.said != other.said else _kind_of_rows(text, one.rows, other.rows)


def _kind_of_rows(text: str, one: _Rows, other: _Rows) -> str:
    for kind, form in FORMS:
        if form(one) == form(other) and (kind != "order" or "ORDER BY" in text.upper()):
            return kind
    if len(one) == len(other) and "LIMIT" in text.upper():
        return "which rows a LIMIT keeps"
    if len(one) != len(other):
        return f"more rows by {'kuzu' if len(one) > len(other) else 'ladybug'}"
    if _nothings(one) == _nothings(other):
        return "values"
    return f"nothing by {'kuzu' if _nothings(one) > _nothings(other) else 'ladybug'} where the other has a value"


def _nothings(rows: _Rows) -> int:
    return sum(not value for row in rows for value in row)


def _bag(rows: _Rows) -> list[str]:
    return sorted(map(repr, rows))


def _rounded(value: Any) -> Any:
    match value:
        case float():
            return float(f"{value:.10g}")
        case list():
            return [_rounded(part) for part in value]
        case dict():
            return {name: _rounded(part) for name, part in value.items()}
        case _:
            return value


def _unordered(value: Any) -> Any:
    match value:
        case list():
            return sorted((_unordered(part) for part in value), key=repr)
        case dict():
            return {name: _unordered(value[name]) for name in sorted(value)}
        case _:
            return _rounded(value)


FORMS = (
    ("", lambda rows: rows),
    ("order", _bag),
    ("", _bag),
    ("last digits of numbers", lambda rows: _bag(_rounded(rows))),
    ("order within lists", _unordered),
)
"""Ever coarser forms of rows; the first in which two answers are the same names the kind of their difference."""


def _general(said: str) -> str:
    """An error's text without what is particular to its statement."""
    said = re.sub(r"(?:, at line \d+, column \d+)+$", "", said.splitlines()[0])
    said = re.sub(r'"[^"]*"|`[^`]*`', "…", said)
    return re.sub(r"\b[a-z]?\d+(?:\.\d+)?\b", "N", said)[:110]


def _short(answer: Answer) -> str:
    shown = f"{answer.error}: {answer.said}" if answer.error else f"{len(answer.rows)} rows {answer.rows[:3]}"
    return shown.replace("\n", " ")[:230]


if __name__ == "__main__":
    compare(int(*sys.argv[1:2] or "1"))
