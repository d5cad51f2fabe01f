"""Optional fields on every way in and out: summaries, tags, freshness, validity, names and memory fields."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.server.http.asking import ask, post, values
from tests.server.http.serving import accepted, refusal

Json = dict[str, Any]
NDJSON = {"content-type": "application/x-ndjson"}
NODE: Json = {
    "summary": "in short ü\n",
    "tags": ["b", "a/ü", "b, c"],
    "freshness_at": "2031-01-01T00:00:00.000001Z",
    "created_by": "ada~%",
    "valid_from": "0001-01-01T00:00:00.000000Z",
    "valid_to": "9999-12-31T23:59:59.999999Z",
    "name": "Ada ü",
    "confidence": 0.25,
    "confidence_at": "2020-01-01T00:00:00.000001Z",
    "importance": 0.0,
    "source": "chat/7",
    "context": "at\nlunch",
    "layer": 0,
}
EDGE: Json = {
    "ordinal": -(1 << 53),
    "created_by": "bob",
    "valid_from": "1969-12-31T23:59:59.999999Z",
    "valid_to": "1970-01-01T00:00:00.000000Z",
    "confidence": 1.0,
    "context": "said",
}
LINK: Json = {"from": "a", "to": "b", "relation_type": "R"}
TIME = "timestamp('2020-01-01 00:00:00')"


def inject(http: httpx.Client, api: str, *nodes: Json, edges: list[Json] | None = None) -> Json:
    return accepted(http.post(f"{api}/inject", json={"nodes": list(nodes), "edges": edges or []}))


def node(http: httpx.Client, api: str, node_id: str = "a") -> Json:
    return accepted(http.get(f"{api}/nodes/{node_id}"))["node"]


def link(http: httpx.Client, api: str) -> Json:
    return accepted(http.get(f"{api}/edges/a~R~b"))["edge"]


def set_(http: httpx.Client, api: str, statement: str) -> Json:
    return ask(http, api, statement, mode="write")["changes"]


@pytest.fixture
def full(http: httpx.Client, api: str) -> str:
    """Store with a node and an edge that have all optional fields, and a node without."""
    return fill(http, api)


@pytest.fixture(scope="module")
def shared(http: httpx.Client) -> str:
    """Store for tests that do not write."""
    return fill(http, "/api/memory/extras")


def fill(http: httpx.Client, api: str) -> str:
    inject(http, api, {"id": "a", "type": "t", **NODE}, {"id": "b", "type": "t"}, edges=[LINK | EDGE])
    return api


def test_optional_fields_round_trip(http: httpx.Client, shared: str) -> None:
    assert node(http, shared).items() >= (NODE | {"stale": False, "version": 1}).items()
    assert link(http, shared).items() >= EDGE.items()
    assert node(http, shared, "b").keys().isdisjoint({*NODE, "stale", "conflicts"})


def test_export_and_import_give_an_equal_store(http: httpx.Client, full: str) -> None:
    inject(http, full, {"id": "a", "summary": "anew", "created_by": "cy"})
    exported = http.get(f"{full}/export").content
    copied = accepted(http.post(f"{full}-copy/import", content=exported, headers=NDJSON))
    assert (copied["ok"], copied["nodes_created"], copied["edges_created"]) == (True, 2, 1)
    assert sorted(http.get(f"{full}-copy/export").content.splitlines()) == sorted(exported.splitlines())
    again = accepted(http.post(f"{full}-copy/import", content=exported, headers=NDJSON))
    assert (again["nodes_unchanged"], again["edges_unchanged"], again["sequence"]) == (2, 1, copied["sequence"])
    one, other = node(http, full), node(http, f"{full}-copy")
    assert one | {"sequence": 1} == other | {"sequence": 1}


def test_omitted_fields_are_kept_and_empty_ones_cleared(http: httpx.Client, full: str) -> None:
    nothing = dict.fromkeys([*NODE], None)
    assert inject(http, full, {"id": "a", **nothing}, edges=[LINK | dict.fromkeys(EDGE)])["nodes_unchanged"] == 1
    assert inject(http, full, {"id": "a", "content": "c"})["nodes_updated"] == 1
    assert "created_by" not in node(http, full), "nobody said who wrote this state"
    assert node(http, full).items() >= {key: NODE[key] for key in NODE if key != "created_by"}.items()
    for field in ("summary", "tags", "freshness_at", "valid_from", "valid_to"):
        empty: Any = [] if field == "tags" else ""
        assert inject(http, full, {"id": "a", field: empty})["nodes_updated"] == 1
        assert field not in node(http, full)
        assert inject(http, full, {"id": "a", field: empty})["nodes_unchanged"] == 1
    for field in ("name", "confidence_at", "source", "context"):
        assert inject(http, full, {"id": "a", field: ""})["nodes_updated"] == 1
        assert field not in node(http, full)
    for field in ("valid_from", "valid_to", "context"):
        assert inject(http, full, edges=[LINK | {field: ""}])["edges_updated"] == 1
        assert field not in link(http, full)
    assert link(http, full)["ordinal"] == EDGE["ordinal"]


def test_author_change_alone_creates_no_version(http: httpx.Client, shared: str) -> None:
    assert inject(http, shared, {"id": "a", "created_by": "eve"})["nodes_unchanged"] == 1
    assert (node(http, shared)["created_by"], node(http, shared)["version"]) == (NODE["created_by"], 1)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        *(("summary", "x" * 4097), ("tags", ["x" * 513]), ("tags", [""]), ("tags", ["x"] * 101), ("tags", "x")),
        *(("freshness_at", "soon"), ("valid_to", "2025-13-01T00:00:00Z"), ("valid_from", "0001-01-01T00:00:00+01:00")),
        *(("created_by", "x" * 513), ("valid_to", "1999-12-31T23:59:59.999999Z"), ("summary", 1), ("tags", [None])),
        *(("confidence", 1.01), ("confidence", -0.1), ("importance", 2), ("layer", 4), ("layer", -1), ("layer", 1.5)),
        *(("name", "x" * 513), ("context", "x" * 65_537), ("confidence_at", "soon"), ("ended", "merged")),
    ],
)
def test_invalid_optional_fields_are_refused(http: httpx.Client, api: str, field: str, wrong: Any) -> None:
    row = {"id": "a", "type": "t", "valid_from": "2000-01-01T00:00:00Z", field: wrong}
    document = refusal(http.post(f"{api}/inject", json={"nodes": [row]}), 400)
    assert field in document["errors"][0]["path"]
    assert http.get(f"{api}/nodes/a").status_code == 404


@pytest.mark.parametrize("ordinal", [(1 << 53) + 1, -(1 << 53) - 1, 1.5, "1", True])
def test_invalid_ordinals_are_refused(http: httpx.Client, api: str, ordinal: Any) -> None:
    document = refusal(http.post(f"{api}/inject", json={"edges": [LINK | {"ordinal": ordinal}]}), 400)
    assert "ordinal" in document["errors"][0]["path"]


def test_cypher_writes_optional_fields(http: httpx.Client, api: str) -> None:
    inject(http, api, {"id": "a", "type": "t"}, {"id": "b", "type": "t"}, edges=[LINK])
    whole = f"n.summary = 's', n.tags = ['y', 'x'], n.freshness_at = {TIME}, n.created_by = 'ada', n.valid_to = {TIME}"
    assert set_(http, api, f"MATCH (n {{id: 'a'}}) SET {whole}")["nodes_updated"] == 1
    found, moment = node(http, api), "2020-01-01T00:00:00.000000Z"
    assert (found["summary"], found["tags"], found["created_by"]) == ("s", ["y", "x"], "ada")
    assert (found["freshness_at"], found["stale"], found["valid_to"], found["version"]) == (moment, True, moment, 2)
    assert set_(http, api, f"MATCH ()-[r]->() SET r.ordinal = 3, r.valid_from = {TIME}")["edges_updated"] == 1
    assert (link(http, api)["ordinal"], link(http, api)["valid_from"]) == (3, moment)
    row = values(http, api, "MATCH (n {id: 'a'})-[r]->() RETURN n.summary, n.tags, n.valid_to, r.ordinal")
    assert row[:2] == ["s", ["y", "x"]]
    assert row[2].startswith("2020-01-01")
    assert row[3] == 3
    memory = "n.name = 'Ada', n.confidence = 0.5, n.importance = 1, n.source = 's', n.context = 'c', n.layer = 2"
    assert set_(http, api, f"MATCH (n {{id: 'b'}}) SET {memory}, n.confidence_at = {TIME}")["nodes_updated"] == 1
    assert set_(http, api, "MATCH ()-[r]->() SET r.confidence = 0.75, r.context = 'd'")["edges_updated"] == 1
    other = node(http, api, "b")
    assert [other[key] for key in ("confidence", "importance", "layer")] == [0.5, 1.0, 2]
    assert (other["attributes"], "name" in other) == ({"name": "Ada"}, False)
    assert [other[key] for key in ("source", "context", "confidence_at")] == ["s", "c", moment]
    assert (link(http, api)["confidence"], link(http, api)["context"]) == (0.75, "d")
    assert values(http, api, "MATCH (m) WHERE m.confidence IS NOT NULL RETURN m.id, m.layer") == ["b", 2]
    assert set_(http, api, "MATCH (n {id: 'b'}) SET n.confidence = NULL, n.layer = NULL, n.name = NULL")
    assert node(http, api, "b").keys().isdisjoint({"confidence", "layer", "name"})
    assert node(http, api, "b")["attributes"] == {}
    assert set_(http, api, "MATCH (n {id: 'a'}) SET n.summary = NULL, n.tags = NULL, n.valid_to = NULL")
    assert node(http, api).keys().isdisjoint({"summary", "tags", "valid_to", "created_by"})
    assert (
        set_(http, api, "CREATE (:Entity {id: 'c', type: 't', tags: ['z'], created_by: 'bob'})")["nodes_created"] == 1
    )
    assert (node(http, api, "c")["tags"], node(http, api, "c")["created_by"]) == (["z"], "bob")


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("MATCH (n {id: 'a'}) SET n.created_by = 'eve'", "cannot be set alone"),
        ("MATCH ()-[r]->() SET r.created_by = 'eve'", "cannot be set alone"),
        ("MATCH (n {id: 'a'}) SET n.conflicts = [1]", "conflicts is managed by kgserve"),
        ("MATCH ()-[r]->() SET r.ordinal = NULL", "cannot be removed"),
        ("MATCH ()-[r]->() SET r.ordinal = 9007199254740993", "ordinal is outside"),
        ("MATCH (n {id: 'b'}) SET n.tags = ['']", "tags"),
        ("MATCH (n {id: 'b'}) SET n.confidence = 1.5", "confidence is outside"),
        ("MATCH (n {id: 'b'}) SET n.layer = 4", "layer is outside"),
        ("MATCH (n {id: 'b'}) SET n.ended = 'pruned'", "ended is managed by kgserve"),
        ("MATCH (n {id: 'b'}) SET n.valid_from = timestamp('2021-01-01 00:00:00'), n.valid_to = " + TIME, "valid_to"),
        ("MATCH (n {id: 'a'}) SET n.valid_from = timestamp('10000-01-01 00:00:00')", "valid_from"),
    ],
)
def test_what_cypher_cannot_write(http: httpx.Client, shared: str, statement: str, words: str) -> None:
    before, sequence = http.get(f"{shared}/export").content, accepted(http.get(shared))["sequence"]
    assert words in refusal(post(http, shared, statement, mode="write"), 400)["detail"]
    assert http.get(f"{shared}/export").content == before
    assert accepted(http.get(shared))["sequence"] == sequence


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("MATCH (n {id: 'a'}) RETURN n.`summary`, n.tags, n.valid_to", [None, None, None]),
        ("MATCH ()-[r]->() RETURN r.ordinal, r.created_by", [None, None]),
        ("MATCH (m) WHERE m.confidence IS NULL RETURN count(m)", [2]),
        ("MATCH (:Entity {layer: 2})-[r]->() RETURN count(r.context)", [0]),
        ("MATCH (n) WHERE n.created_by IS NULL RETURN count(n)", [2]),
        ("MATCH p = (a)-[r]->(b) RETURN properties(nodes(p), 'tags')", [[None, None]]),
        ("MATCH p = (a)-[r]->(b) RETURN properties(rels(p), 'ordinal')", [[None]]),
    ],
)
def test_fields_without_values_are_readable_in_cypher(
    http: httpx.Client, api: str, asked: str, answer: list[Any]
) -> None:
    inject(http, api, {"id": "a", "type": "t"}, {"id": "b", "type": "t"}, edges=[LINK])
    assert values(http, api, asked) == answer
    assert accepted(http.get(api))["sequence"] == 1


def test_a_node_is_stale_once_it_is_no_longer_fresh(http: httpx.Client, api: str) -> None:
    times = {"a": "2020-01-01T00:00:00Z", "b": "2999-01-01T00:00:00Z"}
    inject(http, api, *({"id": key, "type": "t", "freshness_at": time} for key, time in times.items()))
    inject(http, api, {"id": "c", "type": "t"}, edges=[LINK, LINK | {"to": "c"}])
    compact = accepted(http.get(f"{api}/nodes", params={"compact": True}))["nodes"]
    walked = accepted(http.post(f"{api}/traverse", json={"start_id": "a"}))["nodes"]
    for rows in (accepted(http.get(f"{api}/nodes"))["nodes"], compact, walked, [node(http, api, key) for key in "abc"]):
        assert {row["id"]: row.get("stale") for row in rows} == {"a": True, "b": False, "c": None}


def test_compact_nodes_omit_content_and_attributes(http: httpx.Client, shared: str) -> None:
    one, other = accepted(http.get(f"{shared}/nodes", params={"compact": True}))["nodes"]
    light = NODE.keys() - {"created_by", "freshness_at"} | {"stale"}
    always = {"id", "type", "version", "sequence", "created_at", "updated_at"}
    assert other.keys() == always
    assert one == {key: value for key, value in node(http, shared).items() if key in light | always}
