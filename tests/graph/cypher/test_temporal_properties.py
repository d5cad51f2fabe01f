"""Temporal values as properties: how they are stored, read, shown and compared."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from kgserve.cypher.interpreter.stored_temporal_values import decode_property_from_json, encode_property_as_json
from kgserve.errors import InvalidInput
from kgserve.graph.cypher.iso_temporal_answers import TemporalToTextCursor
from kgserve.graph.cypher.statement_execution import run_cypher_request
from kgserve.graph.mutations import upsert_nodes_and_edges
from kgserve.graph.request_bodies import CypherRequest, InjectRequest
from kgserve.projections.cypher_engine.engine.protocol import ResultChunk
from kgserve.stores.pool import StorePool
from tests.cypher.interpreter.evaluate import evaluate
from tests.graphs import graph_of
from tests.stores.writing import NAME, PATIENCE, settings

VALUES = {
    "date('2026-01-02')": {"$date": "2026-01-02"},
    "date('-0044-03-15')": {"$date": "-0044-03-15"},
    "time('12:30:00.000000001+01:00')": {"$time": "12:30:00.000000001+01:00"},
    "localtime('23:59')": {"$localtime": "23:59"},
    "localdatetime('2026-01-02T03:04:05')": {"$localdatetime": "2026-01-02T03:04:05"},
    "datetime('2026-01-02T03:04:05Z')": {"$datetime": "2026-01-02T03:04:05Z"},
    "datetime('2026-10-25T02:30+01:00[Europe/Paris]')": {"$datetime": "2026-10-25T02:30+01:00[Europe/Paris]"},
    "datetime('2026-10-25T02:30+02:00[Europe/Paris]')": {"$datetime": "2026-10-25T02:30+02:00[Europe/Paris]"},
    "duration('P1Y2M-3DT4.5S')": {"$duration": "P1Y2M-3DT4.5S"},
    "duration({months: -14, days: 40, seconds: -3661})": {"$duration": "P-1Y-2M40DT-1H-1M-1S"},
}  # fmt: skip


@pytest.mark.parametrize(("text", "stored"), VALUES.items(), ids=str)
def test_values_have_a_form_in_json_that_reads_back_as_the_same_value(text: str, stored: dict[str, str]) -> None:
    value = evaluate(text)
    assert encode_property_as_json({"a": [value]}) == {"a": [stored]}
    assert decode_property_from_json({"a": [stored]}) == {"a": [value]}
    assert type(decode_property_from_json(stored)) is type(value)


@pytest.mark.parametrize(
    "value",
    [
        "2026-01-02",
        {"$date": "tomorrow"},
        {"$date": 1},
        {"$date": "2026-01-02", "x": 1},
        {"date": "2026-01-02"},
        {"$x": "1"},
    ],
)
def test_other_json_stays_what_it_is(value: Any) -> None:
    assert decode_property_from_json(value) == value


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StorePool]:
    with StorePool(settings(tmp_path_factory.mktemp("temporal") / "data")) as pool:
        nodes = [
            {"id": "rest", "type": "task", "attributes": {"due": {"$date": "2026-03-01"}, "text": "2026-03-01"}},
            {"id": "plain", "type": "task", "attributes": {"due": "2026-01-01"}},
        ]
        upsert_nodes_and_edges(graph_of(pool, NAME), msgspec.convert({"nodes": nodes}, InjectRequest)).result(PATIENCE)
        run(
            pool,
            "MATCH (r {id: 'rest'}) CREATE (n:task {id: 'new', due: date('2026-02-01'), at: [localtime('10:00')]})"
            "-[:AFTER {gap: duration('P1D')}]->(r)",
            mode="write",
        )
        yield pool


def run(pool: StorePool, query: str, **more: Any) -> list[list[Any]]:
    return run_cypher_request(graph_of(pool, NAME), CypherRequest(query=query, **more)).rows


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("MATCH (n:task) WHERE n.due < date('2026-02-15') RETURN n.id, n.due", [["new", "2026-02-01"]]),
        (
            "MATCH (n:task {due: date('2026-03-01')}) RETURN n.id, n.due.year, n.text = '2026-03-01'",
            [["rest", 2026, True]],
        ),
        ("MATCH (n:task {due: '2026-01-01'}) RETURN n.id", [["plain"]]),
        ("MATCH (n:task) RETURN n.id ORDER BY n.due", [["new"], ["rest"], ["plain"]]),
        (
            "MATCH (n:task)-[r:AFTER]->(m) RETURN n.due + r.gap, duration.inDays(n.due, m.due).days",
            [["2026-02-02", 28]],
        ),
        ("MATCH (n {id: 'new'}) RETURN properties(n).at[0].hour, valueType(n.due)", [[10, "DATE NOT NULL"]]),
        ("MATCH (n:task) RETURN max(n.due), count(DISTINCT n.due)", [["2026-01-01", 3]]),
    ],
)
def test_statements_read_and_compare_values(filled: StorePool, query: str, rows: list[list[Any]]) -> None:
    assert run(filled, query) == rows


@pytest.mark.parametrize(
    "query",
    [
        "MATCH (n:task {id: 'new'}) RETURN n",
        "MATCH (n:Entity) WHERE n.id = 'new' RETURN n",
        "MATCH (n) WHERE n.id = 'new' RETURN n",
    ],
)
def test_nodes_in_answers_show_texts(filled: StorePool, query: str) -> None:
    [[node]] = run(filled, query)
    assert json.loads(node["attributes"]) == {"due": "2026-02-01", "at": ["10:00"]}
    [[nodes]] = run(filled, query.replace("RETURN n", "RETURN collect(n)"))
    assert nodes == [node]


def test_rows_keep_the_stored_form(filled: StorePool) -> None:
    with filled.lease(NAME) as store, store.reading() as rows:
        row = rows.node("new")
    assert row is not None
    assert json.loads(row.attributes) == {"due": {"$date": "2026-02-01"}, "at": [{"$localtime": "10:00"}]}
    before = row.attributes
    run(filled, "MATCH (n:task {id: 'new'}) SET n.due = date('2026-02-01')", mode="write")
    with filled.lease(NAME) as store, store.reading() as rows:
        row = rows.node("new")
    assert row is not None
    assert row.attributes == before


def test_maps_that_stand_for_values_are_refused_in_statements(filled: StorePool) -> None:
    with pytest.raises(InvalidInput, match=r"which stands for date\('2026-01-02'\)"):
        run(filled, "MATCH (n:task) SET n.due = {`$date`: '2026-01-02'}", mode="write")


class PieceCursor:
    """Cursor of one column, whose text arrives in pieces."""

    columns, types, total, seconds = ["n"], ["NODE"], 3, 0.0

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    def lines(self) -> Iterator[bytes]:
        return iter(b"".join(self._pieces).splitlines())

    def parts(self) -> Iterator[ResultChunk]:
        for number, piece in enumerate(self._pieces, 1):
            yield ResultChunk(piece, piece.count(b"\n"), number < len(self._pieces))


@pytest.mark.parametrize("size", [1, 7, 50, 1000])
def test_streamed_nodes_show_texts(size: int) -> None:
    nodes = [{"_label": "Entity", "attributes": json.dumps({"due": {"$date": f"2026-01-0{day}"}})} for day in (1, 2, 3)]
    text = b"".join(json.dumps([node]).encode() + b"\n" for node in nodes)
    cursor = TemporalToTextCursor(PieceCursor([text[at : at + size] for at in range(0, len(text), size)]))
    parts = [*cursor.parts()]
    lines = b"".join(part.lines for part in parts).splitlines()
    assert [json.loads(line) for line in lines] == [json.loads(line) for line in cursor.lines()]
    assert [json.loads(json.loads(line)[0]["attributes"])["due"] for line in lines] == [
        "2026-01-01",
        "2026-01-02",
        "2026-01-03",
    ]
    assert sum(part.count for part in parts) == 3
    assert [part.more for part in parts] == [True] * (len(parts) - 1) + [False]
