"""Comparison of what a caller gets over REST, where the engine may run a statement, with the interpreter alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from kgserve.platform.settings import EngineName
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert, WriteBatch
from tests.cypher.differential.product import Outcome, StatementStore
from tests.cypher.reference.interpreter import Answer, same_rows

STATE = (
    "MATCH (n) RETURN n.id, labels(n), properties(n)",
    "MATCH (a)-[r]->(b) RETURN a.id, b.id, type(r), properties(r)",
)
_IDS = "abcde"
_LABELS = ("", "", "", ":Entity", ":entity", ":ENTITY", ":Task")
_NODE_PROPERTIES = ("content", "content", "summary", "type", "Content", "weight", "tags")
_EDGE_PROPERTIES = ("weight", "weight", "ordinal", "content")


class RouteStatements:
    """Random statements in forms that the engine runs, or that look like one."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def make(self) -> tuple[str, bool]:
        """Return a statement, and whether it writes."""
        return (self._write(), True) if self._random.random() < 0.6 else (self._read(), False)

    def _node(self, name: str) -> str:
        entries = f" {{id: '{self._random.choice(_IDS)}'}}" if self._random.random() < 0.5 else ""
        return f"({name}{self._random.choice(_LABELS)}{entries})"

    def _match(self) -> str:
        choice = self._random
        step = choice.choice(("-[r]->", "<-[r]-", "-[r]-", "-[r:RELATES_TO]->", "-[r:relates_to]->"))
        path = choice.choice((f"{self._node('a')}", f"{self._node('a')}, {self._node('b')}", ""))
        matched = f"MATCH {path or self._node('a') + step + self._node('b')}"
        rows = choice.choice(("", "", f"UNWIND ['x', 'y'] AS i {matched}", f"{matched} UNWIND ['x', 'y'] AS i"))
        return rows or matched

    def _names(self, match: str) -> list[str]:
        return [name for name in "abr" if f"({name}" in match or f"[{name}" in match]

    def _assignment(self, match: str) -> str:
        choice, name = self._random, self._random.choice(self._names(match))
        if name == "r":
            return choice.choice(("r.weight = r.weight + 1", "r.weight = 4.0", "r.content = 'k'", "r.ordinal = 3"))
        other = choice.choice([each for each in self._names(match) if each != "r"])
        value = choice.choice(("'k'", f"{other}.content + 'z'", f"{other}.id", "i" if " AS i" in match else "'j'"))
        return f"{name}.{choice.choice(('content', 'content', 'summary'))} = {value}"

    def _write(self) -> str:
        choice, match = self._random, self._match()
        if choice.random() < 0.15:
            name = choice.choice(self._names(match))
            return f"{match} {'DELETE' if name == 'r' else 'DETACH DELETE'} {name} RETURN count(*)"
        clauses = [f"SET {self._assignment(match)}" for _ in range(choice.choice((1, 1, 2)))]
        if "r" in self._names(match) and choice.random() < 0.2:
            clauses.insert(choice.randrange(2), "DELETE r")
        if choice.random() < 0.2:
            match += f" WITH *, {choice.choice(self._names(match))}.weight AS old"
        name = choice.choice(self._names(match))
        returned = f"RETURN {name}.{'weight' if name == 'r' else 'content'}"
        return " ".join([match, *clauses, *([returned] if "DELETE r" not in clauses else [])])

    def _read(self) -> str:
        choice = self._random
        if choice.random() < 0.4:
            least, most, arrow = choice.choice((0, 0, 1)), choice.choice((1, 2)), choice.choice(("", ">"))
            path = f"{self._node('a')}-[*{least}..{most}]-{arrow}{self._node('b')}"
            return (
                f"MATCH p = {path} RETURN DISTINCT {choice.choice(('b.id', 'length(p), b.id', 'count(DISTINCT b.id)'))}"
            )
        match = self._match()
        name = choice.choice(self._names(match))
        property_ = choice.choice(_EDGE_PROPERTIES if name == "r" else _NODE_PROPERTIES)
        test = choice.choice(("IS NULL", "IS NOT NULL", "= 'k'", "<> 't'"))
        return choice.choice((
            f"{match} RETURN {name}.{property_}, count(*)",
            f"{match} WITH {name} WHERE {name}.{property_} {test} RETURN count(*)",
            f"{match} RETURN DISTINCT {name}.{property_}",
        ))  # fmt: skip


def compare_routes(folder: Path, engine: EngineName, seed: int, count: int) -> Iterator[tuple[str, Outcome, Outcome]]:
    """Yield the statements for which REST and the interpreter differ, in their rows or in what they store."""
    served, alone = (StatementStore(folder / name, engine, _content()) for name in ("served", "alone"))
    statements = RouteStatements(seed)
    try:
        for _ in range(count):
            text, writes = statements.make()
            outcomes = served.ask(text, {}, writes=writes), alone.interpret(text, {}, writes=writes)
            states = [tuple(store.interpret(query, {}) for store in (served, alone)) for query in STATE if writes]
            for one, other in (outcomes, *states):
                if bool(one.error) != bool(other.error) or not _same(one, other):
                    yield text, one, other
                    return
            if "DELETE" in text:
                served.fill(_content())
                alone.fill(_content())
    finally:
        served.close()
        alone.close()


def _same(one: Outcome, other: Outcome) -> bool:
    return same_rows(Answer([], other.rows, [0] * len(other.rows)), one.rows)


def _content() -> WriteBatch:
    """Return a graph with cycles, a node without label, and attributes with the names of columns."""
    types, attributes = (
        ("t", "entity", "_", "t", "Task"),
        ('{"summary":"s"}', "{}", '{"weight":2}', "{}", '{"Content":1}'),
    )
    nodes = [
        NodeUpsert(at, each, type_, each, own)
        for at, (each, type_, own) in enumerate(zip(_IDS, types, attributes, strict=True))
    ]
    pairs = ("ab", "ba", "bc", "cd", "de", "ea")
    own = ('{"ordinal":"o"}', "{}", "{}", '{"content":"k"}', "{}", "{}")
    edges = [EdgeUpsert(at, (one, other, "R"), 1.0, own=own[at]) for at, (one, other) in enumerate(pairs)]
    return WriteBatch(nodes=nodes, edges=edges)
