"""Valid time over HTTP: ending validity, and the reads that respect it."""

from __future__ import annotations

import time
from typing import Any

import httpx
import msgspec
import pytest

from kgserve.platform.timestamps import format_rfc3339_timestamp, parse_rfc3339_timestamp
from tests.server.http.serving import accepted, refusal

Json = dict[str, Any]
LONG_AGO, THEN, SINCE = "1990-01-01T00:00:00Z", "2010-01-01T00:00:00Z", "2020-01-01T00:00:00.000000Z"
FAR_OFF = "2999-01-01T00:00:00.000000Z"
NEVER_YET = {"valid_from": FAR_OFF}
OVER = {"valid_to": SINCE}
GOES_ON = ["hub", "leaf", "lone"]
EDGE = {"from": "hub", "to": "leaf", "relation_type": "R"}


def inject(http: httpx.Client, api: str, *nodes: Json, edges: list[Json] | None = None) -> int:
    """Write nodes and edges; return the commit sequence."""
    return accepted(http.post(f"{api}/inject", json={"nodes": list(nodes), "edges": edges or []}))["sequence"]


def retire(http: httpx.Client, api: str, node_id: str, **fields: Any) -> Json:
    return accepted(http.post(f"{api}/nodes/{node_id}/retire", json=fields))


def node(http: httpx.Client, api: str, node_id: str, **query: Any) -> Json:
    return accepted(http.get(f"{api}/nodes/{node_id}", params=query))


def listed(http: httpx.Client, api: str, **query: Any) -> list[str]:
    return [row["id"] for row in accepted(http.get(f"{api}/nodes", params=query))["nodes"]]


def walked(http: httpx.Client, api: str, **fields: Any) -> list[str]:
    answer = accepted(http.post(f"{api}/traverse", json={"start_id": "hub", "depth": 2, **fields}))
    ends = {end for edge in answer["edges"] for end in (edge["from"], edge["to"])}
    assert ends <= {row["id"] for row in answer["nodes"]}
    return sorted(row["id"] for row in answer["nodes"])


def searched(http: httpx.Client, api: str, **fields: Any) -> list[str]:
    asked = {"query": "mill", "mode": "keyword", "at_least": 1, **fields}
    return sorted(hit["node"]["id"] for hit in accepted(http.post(f"{api}/search", json=asked))["hits"])


def told(http: httpx.Client, api: str, **fields: Any) -> list[str]:
    """Return the ids of a context."""
    asked = {"query": "mill", "limit": 50, "at_least": 1, **fields}
    answer = http.post(f"{api}/context", json=asked)
    for _ in range(5):
        # Indexing has a low priority; on a busy machine it may take long.
        if answer.status_code == 503:
            answer = http.post(f"{api}/context", json=asked)
    return sorted(accepted(answer)["ids"])


@pytest.fixture
def dated(http: httpx.Client, api: str) -> str:
    """Hub with edges to a leaf, to ended and to future nodes; the leaf's edge to a lone node has ended."""
    return fill(http, api)


@pytest.fixture(scope="module")
def shared(http: httpx.Client) -> str:
    """Store for tests that do not write."""
    return fill(http, "/api/memory/validity")


def fill(http: httpx.Client, api: str) -> str:
    some: list[Json] = [
        {"id": "hub"},
        {"id": "leaf"},
        {"id": "lone"},
        {"id": "over", **OVER},
        {"id": "tocome", **NEVER_YET},
    ]
    edges: list[Json] = [EDGE | {"to": name} for name in ("leaf", "over", "tocome")]
    edges.append({"from": "leaf", "to": "lone", "relation_type": "R", **OVER})
    inject(http, api, *({"type": "t", "content": "mill", **row} for row in some), edges=edges)
    return api


def test_retire_ends_validity_now(http: httpx.Client, api: str) -> None:
    inject(http, api, {"id": "a", "type": "t", "content": "c", "created_by": "ada"})
    before = time.time_ns() // 1000
    answer = accepted(http.post(f"{api}/nodes/a/retire"))
    assert before <= parse_rfc3339_timestamp(answer["valid_to"]) <= time.time_ns() // 1000
    assert answer == {"ok": True, "valid_to": answer["valid_to"], "changed": True, "version": 2, "sequence": 2}
    found = node(http, api, "a")["node"]
    assert (found["content"], found["valid_to"], found["version"]) == ("c", answer["valid_to"], 2)
    assert "created_by" not in found
    again = retire(http, api, "a", created_by="bob")
    assert again == answer | {"changed": False}


@pytest.mark.parametrize(
    ("stored", "asked", "end", "changed"),
    [
        pytest.param(OVER, None, SINCE, False, id="an earlier end is kept"),
        pytest.param(OVER, "", SINCE, False, id="empty is left out"),
        pytest.param(OVER, FAR_OFF, FAR_OFF, True, id="a later one when it is sent"),
        pytest.param({}, "2020-01-01T01:00:00+01:00", SINCE, True, id="offset"),
        pytest.param({"valid_from": THEN}, SINCE, SINCE, True, id="after its beginning"),
        pytest.param(NEVER_YET, "3000-01-01T00:00:00Z", "3000-01-01T00:00:00.000000Z", True, id="yet to come"),
    ],
)
def test_the_end_of_a_node_and_of_an_edge(
    http: httpx.Client, api: str, stored: Json, asked: str | None, end: str, changed: bool
) -> None:
    ends = [{"id": name, "type": "t"} for name in ("hub", "leaf")]
    inject(http, api, *ends, {"id": "a", "type": "t", **stored}, edges=[EDGE | stored])
    body = {"valid_to": asked, "created_by": "ada"}
    of_edge = accepted(http.post(f"{api}/edges/retire", json=EDGE | body))
    for answer in (retire(http, api, "a", **body), of_edge):
        assert (answer["valid_to"], answer["changed"], answer["version"]) == (end, changed, 1 + changed)
    edge = accepted(http.get(f"{api}/edges/hub~R~leaf"))["edge"]
    for found in (node(http, api, "a")["node"], edge):
        assert (found["valid_to"], found.get("created_by")) == (end, "ada" if changed else None)
        assert found.get("valid_from", "")[:10] == stored.get("valid_from", "")[:10]


def test_retire_moves_a_future_end_to_now(http: httpx.Client, api: str) -> None:
    inject(http, api, {"id": "a", "type": "t", "valid_to": FAR_OFF})
    answer = retire(http, api, "a")
    assert answer["changed"]
    assert parse_rfc3339_timestamp(answer["valid_to"]) <= time.time_ns() // 1000


@pytest.mark.parametrize("begun", [THEN, FAR_OFF])
def test_end_before_start_is_refused(http: httpx.Client, api: str, begun: str) -> None:
    rows = [{"id": name, "type": "t", "valid_from": begun} for name in ("hub", "leaf")]
    written = inject(http, api, *rows, edges=[EDGE | {"valid_from": begun}])
    early: list[Json] = [{"valid_to": LONG_AGO}]
    if begun == FAR_OFF:
        early += [{}, {"valid_to": SINCE}]
    for body in early:
        for url, more in ((f"{api}/nodes/hub/retire", {}), (f"{api}/edges/retire", EDGE)):
            assert "valid_to" in refusal(http.post(url, json=body | more), 400)["detail"]
    if begun == FAR_OFF:
        document = refusal(http.post(f"{api}/nodes/hub/retire"), 400)
        assert document["detail"] == f"valid_to: is required: validity begins only at {FAR_OFF}"
        assert [error["path"] for error in document["errors"]] == ["valid_to"]
    assert accepted(http.get(api))["sequence"] == written


def test_retiring_missing_rows_is_refused(http: httpx.Client, api: str) -> None:
    refusal(http.post(f"{api}/nodes/a/retire"), 404)
    refusal(http.post(f"{api}/edges/retire", json=EDGE), 404)
    assert http.get(api).status_code == 404, "no store is made for it"
    inject(http, api, {"id": "hub", "type": "t"}, {"id": "leaf", "type": "t"}, edges=[EDGE])
    assert "'a'" in refusal(http.post(f"{api}/nodes/a/retire"), 404)["detail"]
    for wrong in ({"from": "leaf", "to": "hub"}, {"relation_type": "S"}):
        assert "no edge" in refusal(http.post(f"{api}/edges/retire", json=EDGE | wrong), 404)["detail"]
    for body in ({"valid_to": "soon"}, {"valid_to": 3}, {"until": SINCE}, {"created_by": "x" * 513}):
        refusal(http.post(f"{api}/nodes/hub/retire", json=body), 400)
    assert accepted(http.get(api))["sequence"] == 1


def test_lists_show_currently_valid_rows(http: httpx.Client, shared: str) -> None:
    assert listed(http, shared) == listed(http, shared, valid_at="now") == GOES_ON
    assert listed(http, shared, compact=True, type="t", limit=3) == GOES_ON
    assert listed(http, shared, valid_at="any") == sorted([*GOES_ON, "over", "tocome"])
    assert listed(http, shared, valid_at=THEN) == sorted([*GOES_ON, "over"])
    assert listed(http, shared, valid_at=SINCE) == GOES_ON, "what ends at a moment is over then"
    assert listed(http, shared, valid_at=FAR_OFF) == sorted([*GOES_ON, "tocome"])
    assert "valid_at" in refusal(http.get(f"{shared}/nodes", params={"valid_at": "then"}), 400)["detail"]


def test_traversals_follow_currently_valid_edges(http: httpx.Client, shared: str) -> None:
    assert walked(http, shared) == walked(http, shared, valid_at="now") == ["hub", "leaf"]
    assert walked(http, shared, valid_at="any") == ["hub", "leaf", "lone", "over", "tocome"]
    assert walked(http, shared, valid_at=THEN) == ["hub", "leaf", "lone", "over"]
    assert walked(http, shared, valid_at=FAR_OFF) == ["hub", "leaf", "tocome"]
    assert walked(http, shared, start_id="over") == []
    assert walked(http, shared, start_id="over", valid_at="any", direction="incoming") == ["hub", "over"]


def test_searches_find_currently_valid_nodes(http: httpx.Client, shared: str) -> None:
    variants = [{"query": "mill", "mode": "keyword"}]
    for find in (searched, told):
        assert find(http, shared) == find(http, shared, valid_at="now") == GOES_ON
        assert find(http, shared, valid_at="any") == sorted([*GOES_ON, "over", "tocome"])
        assert find(http, shared, valid_at=THEN) == sorted([*GOES_ON, "over"])
        assert find(http, shared, valid_at=FAR_OFF) == sorted([*GOES_ON, "tocome"])
    for words, found in (({}, GOES_ON), ({"valid_at": "any"}, sorted([*GOES_ON, "over", "tocome"]))):
        answer = accepted(http.post(f"{shared}/search/batch", json={"queries": variants, **words}))
        assert sorted(hit["node"]["id"] for hit in answer["hits"]) == found


def test_context_uses_relations_valid_at_its_time(http: httpx.Client, shared: str) -> None:
    asked = {"query": "mill", "limit": 50, "format": "json", "at_least": 1}
    relations = {
        moment: sorted(
            f"{edge['from']}-{edge['to']}"
            for edge in msgspec.json.decode(
                accepted(http.post(f"{shared}/context", json=asked | {"valid_at": moment}))["text"]
            )["edges"]
        )
        for moment in ("now", THEN, "any")
    }
    assert relations["now"] == ["hub-leaf"]
    assert relations[THEN] == ["hub-leaf", "hub-over", "leaf-lone"]
    assert relations["any"] == ["hub-leaf", "hub-over", "hub-tocome", "leaf-lone"]


def test_reads_by_id_ignore_validity(http: httpx.Client, shared: str) -> None:
    assert node(http, shared, "over")["node"]["valid_to"] == SINCE
    assert node(http, shared, "tocome") == node(http, shared, "tocome", valid_at="any")
    assert [edge["to"] for edge in node(http, shared, "hub")["outgoing"]] == ["leaf", "over", "tocome"]
    assert [edge["to"] for edge in node(http, shared, "hub", valid_at="now")["outgoing"]] == ["leaf"]
    assert node(http, shared, "lone", valid_at="now")["incoming"] == []
    assert accepted(http.get(f"{shared}/edges/leaf~R~lone"))["edge"]["valid_to"] == SINCE
    for moment in ("now", FAR_OFF):
        document = refusal(http.get(f"{shared}/nodes/over", params={"valid_at": moment}), 404)
        assert f"true at {moment}" in document["detail"]


def test_exports_ignore_validity_by_default(http: httpx.Client, shared: str) -> None:
    def lines(url: str = shared, **query: str) -> tuple[int, int]:
        rows = [msgspec.json.decode(line) for line in http.get(f"{url}/export", params=query).content.splitlines()]
        nodes = sum(row["kind"] == "node" for row in rows)
        return nodes, len(rows) - nodes

    assert lines() == lines(valid_at="any") == lines(as_of="1") == (5, 4)
    assert lines(valid_at="now") == (3, 1)
    assert lines(valid_at=THEN) == (4, 3)
    accepted(http.post(f"{shared}/restore", json={"as_of": "1", "into": "validity-restored"}))
    assert lines("/api/memory/validity-restored") == (5, 4)


def test_as_of_alone_uses_its_own_valid_time(http: httpx.Client, dated: str) -> None:
    turn = time.time_ns() // 1000 + 1_000_000
    ends = {"id": "ends", "type": "t", "content": "mill", "valid_to": format_rfc3339_timestamp(turn)}
    begins = ends | {"id": "begins", "valid_to": "", "valid_from": format_rfc3339_timestamp(turn)}
    edges = [EDGE | {"to": name} for name in ("begins", "ends")]
    then = inject(http, dated, ends, begins, edges=edges)
    at = node(http, dated, "ends")["node"]["updated_at"]
    assert parse_rfc3339_timestamp(at) < turn, "the machine was too slow for this test"
    last = inject(http, dated, {"id": "later", "type": "t"})
    time.sleep(max(0, turn / 1e6 - time.time()))
    for find in (listed, walked, searched, told):
        fresh = {} if find in {listed, walked} else {"at_least": last}
        assert {"ends", "begins"} & set(find(http, dated, **fresh)) == {"begins"}, find
        for as_of in (str(then), at):
            assert {"ends", "begins"} & set(find(http, dated, as_of=as_of)) == {"ends"}, find
        assert {"ends", "begins"} & set(find(http, dated, as_of=str(then), valid_at="now")) == {"begins"}, find
        assert {"ends", "begins"} & set(find(http, dated, as_of=str(then), valid_at="any")) == {"ends", "begins"}, find


def test_retired_nodes_are_not_found(http: httpx.Client, api: str) -> None:
    rows = [{"id": name, "type": "t", "content": "mill"} for name in ("hub", "leaf", "lone")]
    first = inject(http, api, *rows, edges=[EDGE, EDGE | {"to": "lone"}])
    assert walked(http, api) == GOES_ON
    retire(http, api, "leaf")
    last = accepted(http.post(f"{api}/edges/retire", json=EDGE | {"to": "lone"}))["sequence"]
    assert listed(http, api) == ["hub", "lone"]
    assert walked(http, api) == ["hub"]
    assert searched(http, api, at_least=last) == told(http, api, at_least=last) == ["hub", "lone"]
    for find in (listed, walked, searched, told):
        assert find(http, api, as_of=str(first)) == GOES_ON
        assert find(http, api, valid_at="any") == GOES_ON
    assert [edge["to"] for edge in node(http, api, "hub")["outgoing"]] == ["leaf", "lone"]
