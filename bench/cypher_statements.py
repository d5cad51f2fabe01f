"""Made-up Cypher that nearly always runs: patterns, conditions and expressions of the right types.

It names the parameters of `bench.cypher_texts`.
"""

from __future__ import annotations

import random
import re

_KINDS = ("'Requirement'", "'Test'", "'Document'", "'none'")
_NUMBERS = ("0", "1", "2", "-3", "7", "40", "$n", "size($ids)")
_TEXTS = ("'n5'", "'node 1'", "'say'", "''", "'ü'", "$id", "$text")
_TIMES = ("timestamp('2024-02-29 12:30:00')", "timestamp('1999-12-31')", "timestamp('2024-06-01T00:00:00.25')")
_INTEGER = """
({i} + {i}) | ({i} - {i}) | ({i} * {i}) | abs({i}) | size({s}) | size({l}) | ({i} % 7) | coalesce({i}, 0) | sign({i})
CASE WHEN {b} THEN {i} ELSE {i} END | greatest({i}, {i}) | least({i}, {i}) | list_position({l}, {s}) | ({i} & {i})
date_part('year', {t}) | date_part('day', {t}) | bitwise_or({i}, 5) | -{i}
"""
_FLOAT = """
({i} / 3.0) | sqrt(abs({i})) | round({f}, 2) | ({f} + {i}) | floor({f}) | ceil({f}) | ln(1 + abs({i})) | 0.25
pow(1.5, 3) | sin({f}) | CAST({i} AS DOUBLE)
"""
_TEXT = """
upper({s}) | lower({s}) | concat({s}, '-', {s}) | substring({s}, 1, 4) | reverse({s}) | trim({s}) | left({s}, 3)
right({s}, 3) | lpad({s}, 8, '.') | CAST({i} AS STRING) | coalesce({s}, 'none') | regexp_replace({s}, 'n', 'm')
CASE WHEN {b} THEN {s} ELSE {s} END | split_part({s}, ' ', 1) | list_to_string(',', {l}) | md5({s}) | {l}[1]
CAST({t} AS STRING) | repeat({s}, 2) | CAST({b} AS STRING) | monthname({t})
"""
_BOOLEAN = """
({i} < {i}) | ({i} = {i}) | ({i} <> {i}) | ({f} >= {f}) | ({s} = {s}) | ({s} STARTS WITH {s}) | ({s} CONTAINS {s})
({s} ENDS WITH '1') | ({b} AND {b}) | ({b} OR {b}) | ({b} XOR {b}) | (NOT {b}) | ({s} IS NULL) | ({s} IS NOT NULL)
({s} IN {l}) | list_contains({l}, {s}) | ({t} < {t}) | ({s} =~ '.*1.*') | ($nothing IS NULL OR {s} = $nothing) | true
"""
_LIST = """
[{s}, {s}] | $ids | [{s}] | list_sort({l}) | list_reverse({l}) | list_distinct({l}) | list_concat({l}, {l})
list_append({l}, {s}) | list_transform({l}, x -> upper(x)) | list_filter({l}, x -> x <> 'n1') | {l}[1:2]
regexp_split_to_array({s}, ' ')
"""
_MOMENT = """
({t} + interval('7 days')) | date_trunc('month', {t}) | ({t} - interval('3 hours')) | greatest({t}, {t})
date_trunc('day', {t})
"""
_SIGNS = {"i": _INTEGER, "f": _FLOAT, "s": _TEXT, "b": _BOOLEAN, "l": _LIST, "t": _MOMENT}
_FORMS = {sign: re.split(r" \| |\n", forms.strip()) for sign, forms in _SIGNS.items()}


class Maker:
    """Makes statements that read; the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._nodes: list[str] = []
        self._edges: list[str] = []

    def read(self) -> str:
        """A statement that reads."""
        self._nodes, self._edges = [], []
        body = self._random.choice((self._rows, self._rows, self._rows, self._grouped, self._unwound, self._united))
        return body()

    def write(self) -> str:
        """A statement that writes, about few nodes."""
        choice, self._nodes, self._edges = self._random, ["a"], []
        one, other = (f"n{choice.randrange(12)}" for _ in range(2))
        kind, relation = choice.choice(_KINDS), choice.choice(("'verifies'", "'mentions'", "'made'"))
        where = choice.choice((f"{{id: '{one}'}}", f"{{type: {kind}}}", ""))
        ends = f"MATCH (a:Entity {{id: '{one}'}}), (b:Entity {{id: '{other}'}})"
        edge = f"(a)-[e:RELATES_TO {{relation_type: {relation}}}]->(b)"
        return choice.choice((
            f"MERGE (a:Entity {{id: '{one}'}}) ON CREATE SET a.type = {kind} ON MATCH SET a.content = 'met'",
            f"CREATE (a:Entity {{id: 'x{choice.randrange(30)}', type: {kind}}}) RETURN a.id, a.type",
            f"UNWIND $ids AS i MERGE (a:Entity {{id: concat(i, '-m')}}) SET a.type = {kind}",
            f"MATCH (a:Entity {where}) SET a.content = {self._expression('s', 2)}",
            f"MATCH (a:Entity {where}) WHERE {self._expression('b', 1)} SET a.type = {kind} RETURN count(*)",
            f"{ends} MERGE {edge} ON CREATE SET e.weight = 0.25 ON MATCH SET e.weight = coalesce(e.weight, 1.0) + 1",
            f"{ends} CREATE {edge}",
            f"MATCH (a:Entity {where})-[e:RELATES_TO]->(b:Entity) SET e.weight = 2.5",
            f"MATCH (a:Entity {where})-[e:RELATES_TO {{relation_type: {relation}}}]->(b:Entity) DELETE e",
            f"MATCH (a:Entity {{id: '{one}'}}) DETACH DELETE a",
            f"MATCH (a:Entity {{id: '{one}'}}) DELETE a",
        ))  # fmt: skip

    def _rows(self) -> str:
        pattern, parts = (
            self._pattern(),
            [self._expression(self._kind(), 2) for _ in range(self._random.randrange(1, 4))],
        )
        shown = self._random.choice((self._nodes[:1], self._edges[:1], [], []))
        distinct = self._random.choice(("", "", "", "DISTINCT "))
        items = ", ".join([*shown, *(f"{part} AS c{number}" for number, part in enumerate(parts))])
        return f"{pattern}{self._where()} RETURN {distinct}{items}{'' if shown else self._end(len(parts))}"

    def _grouped(self) -> str:
        pattern, where = self._pattern(), self._where()
        key = self._expression(self._random.choice("is"), 1)
        sums = self._random.sample(
            ("count(*)", f"sum({self._expression('i', 1)})", f"min({self._expression('s', 1)})",
             f"max({self._expression('i', 1)})", f"count(DISTINCT {self._expression('s', 1)})",
             f"avg({self._expression('i', 1)})", f"list_sort(collect({self._expression('s', 1)}))"),
            2,
        )  # fmt: skip
        having = self._random.choice(("", " WHERE many > 1"))
        gathered = f"{key} AS k, count(*) AS many, {sums[0]} AS x, {sums[1]} AS y"
        return f"{pattern}{where} WITH {gathered}{having} RETURN k, many, x, y"

    def _unwound(self) -> str:
        inner = self._random.choice(("$ids", "['n1', 'n2', 'n9']", "['n3', 'n3', 'nowhere']"))
        self._nodes = ["n"]
        match = self._random.choice(("MATCH", "OPTIONAL MATCH"))
        shown = self._expression(self._kind(), 2)
        return f"UNWIND {inner} AS each {match} (n:Entity {{id: each}}) RETURN each, {shown} AS c0{self._end(1)}"

    def _united(self) -> str:
        kind, all_ = self._kind(), self._random.choice(("", " ALL"))
        sides: list[str] = []
        for _ in range(2):
            self._nodes, self._edges = [], []
            pattern = self._pattern()
            sides.append(f"{pattern}{self._where()} RETURN {self._expression(kind, 1)} AS c")
        return f" UNION{all_} ".join(sides)

    def _pattern(self) -> str:
        start = self._random.choice(
            ("(a:Entity)", "(a:Entity {id: $id})", f"(a:Entity {{type: {self._random.choice(_KINDS)}}})")
        )
        way = self._random.randrange(7)
        left, right = self._random.choice((("-", "->"), ("<-", "-"), ("-", "-")))
        self._nodes = ["a"] if way == 0 else ["a", "b"]
        self._edges = ["e"] if way in {1, 2, 5, 6} else []
        match way:
            case 0:
                return f"MATCH {start}"
            case 1 | 2:
                return f"MATCH {start}{left}[e:RELATES_TO]{right}(b:Entity)"
            case 3:
                return f"MATCH (a:Entity {{id: $id}}){left}[:RELATES_TO*1..2]{right}(b:Entity)"
            case 4:
                return f"MATCH (a:Entity {{id: 'n3'}}){left}[w:RELATES_TO* SHORTEST 1..3]{right}(b:Entity)"
            case 5:
                verified = "[e:RELATES_TO {relation_type: 'verifies'}]"
                return f"MATCH {start} OPTIONAL MATCH (a){left}{verified}{right}(b:Entity)"
            case _:
                return (
                    f"MATCH (a:Entity)-[:RELATES_TO]->(c:Entity), (c){left}[e:RELATES_TO]{right}(b:Entity {{id: 'n7'}})"
                )

    def _where(self) -> str:
        way = self._random.random()
        if way < 0.4:
            return ""
        if way < 0.5:
            return " WHERE EXISTS { MATCH (a)-[:RELATES_TO]->(z:Entity) WHERE z.type = 'Test' }"
        if way < 0.6:
            return " WHERE COUNT { MATCH (a)<-[:RELATES_TO]-(:Entity) } > 2"
        return f" WHERE {self._expression('b', 2)}"

    def _end(self, columns: int) -> str:
        order = ", ".join(f"c{number}{self._random.choice(('', ' DESC'))}" for number in range(columns))
        limit = self._random.choice(("", f" LIMIT {self._random.choice((0, 5, 20))}", " SKIP 2 LIMIT 9"))
        return self._random.choice(("", "", f" ORDER BY {order}{limit}"))

    def _kind(self) -> str:
        return self._random.choice("iifssslbt")

    def _expression(self, kind: str, depth: int) -> str:
        choice = self._random
        if depth == 0 or choice.random() < 0.25:
            return choice.choice(self._plain(kind))
        form = choice.choice(_FORMS[kind])
        while "{" in form:
            at = form.index("{")
            form = f"{form[:at]}{self._expression(form[at + 1], depth - 1)}{form[at + 3 :]}"
        return form

    def _plain(self, kind: str) -> tuple[str, ...]:
        nodes, edges = self._nodes, self._edges
        match kind:
            case "i":
                return (*_NUMBERS, *(f"{n}.version" for n in nodes), *(f"{e}.sequence" for e in edges))
            case "f":
                return ("0.5", "-1.25", *(f"{e}.weight" for e in edges))
            case "s":
                return (*_TEXTS, *(f"{n}.{part}" for n in nodes for part in ("id", "type", "content")),
                        *(f"{e}.relation_type" for e in edges))  # fmt: skip
            case "b":
                return (
                    "true",
                    "false",
                    *(f"({n}.version > 1)" for n in nodes),
                    *(f"({n}.type = 'Test')" for n in nodes),
                )
            case "l":
                return ("$ids", "['a', 'b']", *(f"[{n}.id, {n}.type]" for n in nodes))
            case _:
                return (*_TIMES, *(f"{n}.created_at" for n in nodes))
