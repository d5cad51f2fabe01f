"""Truncated answers, with a reduced limit."""

from __future__ import annotations

from contextlib import closing

import msgspec
import pytest

from kgserve.errors import TimedOut, TooLarge
from kgserve.graph.cypher import result_streams
from kgserve.graph.cypher.result_streams import stream_statement_result
from kgserve.graph.request_bodies import CypherRequest
from kgserve.stores.pool import StorePool
from tests.graphs import graph_of
from tests.stores.writing import NAME

LONG = "a" * 1_500_000


@pytest.fixture(autouse=True)
def _low(monkeypatch: pytest.MonkeyPatch) -> None:
    forms = {name: form._replace(most_bytes=1 << 20) for name, form in result_streams._RESULT_FORMATS.items()}
    monkeypatch.setattr(result_streams, "_RESULT_FORMATS", forms)


def asked(pool: StorePool, query: str, form: result_streams.ResultTextFormat) -> bytes:
    params = {"t": LONG[:1500]}
    with closing(
        stream_statement_result(graph_of(pool, NAME), CypherRequest(query=query, params=params), form)
    ) as rows:
        return b"".join(rows)


def test_stream_rejects_first_row_over_limit(pool: StorePool) -> None:
    query = "RETURN repeat($t, 1000)"
    with pytest.raises(TooLarge, match="first row"):
        asked(pool, query, "json")
    tail = {"row_count": 0, "truncated": True}
    *_, last = asked(pool, query, "ndjson").splitlines()
    assert msgspec.json.decode(last, type=dict[str, object]).items() >= tail.items()


def test_stream_truncates_before_row_over_limit(pool: StorePool) -> None:
    query = "UNWIND [1, 2, 1000, 3] AS n RETURN n, left(repeat($t, 1000), 1500 * n)"
    expected = [[1, LONG[:1500]], [2, LONG[:3000]]]
    answer = msgspec.json.decode(asked(pool, query, "json"))
    assert (answer["rows"], answer["row_count"], answer["truncated"]) == (expected, 2, True)
    _, *rows, last = (msgspec.json.decode(line) for line in asked(pool, query, "ndjson").splitlines())
    assert (rows, last["row_count"], last["truncated"]) == (expected, 2, True)


def test_time_limit_applies_to_json_but_not_to_streams(pool: StorePool) -> None:
    """JSON answers must be complete within the time limit; streams may take longer."""
    request = CypherRequest(query="UNWIND range(1, 5000) AS i RETURN range(1, 40)", timeout_ms=1, max_rows=5000)
    with pytest.raises(TimedOut):
        stream_statement_result(graph_of(pool, NAME), request, "json")
