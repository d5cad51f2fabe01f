"""Graph drawing against a plain model, and refusals."""

from __future__ import annotations

import random
from typing import Any

import httpx
import pytest

from tests.server.http.drawn import NAMES, Model, around, edges_among, keys, picture
from tests.server.http.serving import accepted, refusal

NOW = "2050-01-01T00:00:00.000000Z"
"""Valid now, with bounds in 2000 and 2100."""
THEN = "1990-01-01T00:00:00.000000Z"


@pytest.fixture(params=[1, 2, 3])
def model(http: httpx.Client, api: str, request: pytest.FixtureRequest) -> Model:
    written = Model(http, api, request.param)
    for _ in range(25):
        written.write()
    return written


def drawn(model: Model, **wanted: Any) -> dict[str, Any]:
    answer = accepted(model.http.post(f"{model.api}/graph", json=wanted))
    columns = answer["nodes"] | {f"edge {name}": column for name, column in answer["edges"].items()}
    nodes, edges = len(answer["nodes"]["id"]), len(answer["edges"]["type"])
    assert len(set(keys(answer))) == edges
    for name, column in columns.items():
        assert name.endswith("lives_cut") or len(column) == (edges if name.startswith("edge ") else nodes), name
    return answer


def asked(source: random.Random) -> dict[str, Any]:
    """Generate a request for the neighbourhood of nodes."""
    given: dict[str, Any] = {
        "depth": source.randrange(4),
        "direction": source.choice(("both", "outgoing", "incoming")),
        "per_node": source.choice((1, 2, 5, 50)),
        "max_nodes": source.choice((1, 3, 8, 300)),
        "types": source.choice((None, None, ["a"], ["b", "c"])),
        "relation_types": source.choice((None, None, ["r"], ["s", "t", "unknown"])),
    }
    return {name: value for name, value in given.items() if value is not None}


def moments(source: random.Random) -> tuple[dict[str, Any], str | None]:
    """Generate a valid time as it is sent, and for the model."""
    return source.choice((({}, NOW), ({"valid_at": "any"}, None), ({"valid_at": THEN}, THEN)))


def test_neighbourhood_matches_the_model(model: Model) -> None:
    source = random.Random(7)
    for attempt in range(60):
        wanted, (when, at) = asked(source), moments(source)
        sequence = source.randrange(len(model.states)) if attempt % 2 else len(model.states) - 1
        state = model.states[sequence]
        if attempt % 2:
            when = {"as_of": sequence, **when}
        starts = source.sample(NAMES, source.choice((1, 2, 6)))
        answer = drawn(model, around=starts, **wanted, **when)
        there = [each for each in starts if each in state.nodes and state.nodes[each].holds(at)]
        assert picture(answer) == around(state, there, wanted, at), (starts, wanted, when)
        assert answer["sequence"] == sequence
        ids = answer["nodes"]["id"]
        assert answer["missing"] == [each for each in starts if each not in there]
        assert [answer["types"][place] for place in answer["nodes"]["type"]] == [state.nodes[each].type for each in ids]
        assert answer["nodes"]["degree"] == [state.degree(each) for each in ids]
        assert answer["edges"]["weight"] == [state.edges[key].weight for key in keys(answer)]
        for bound in ("valid_from", "valid_to"):
            expected = [getattr(state.nodes[each], bound) for each in ids]
            assert answer["nodes"].get(bound, [None] * len(ids)) == expected
            expected = [getattr(state.edges[key], bound) for key in keys(answer)]
            assert answer["edges"].get(bound, [None] * len(expected)) == expected


def test_drawing_named_nodes_includes_edges_among_them(model: Model) -> None:
    source = random.Random(8)
    for _ in range(20):
        (when, at), sequence = moments(source), source.randrange(len(model.states))
        state, ids = model.states[sequence], source.sample([*NAMES, "nobody"], 9)
        answer = drawn(model, ids=ids, as_of=sequence, valid_at=when.get("valid_at", NOW))
        there = [each for each in ids if each in state.nodes and state.nodes[each].holds(at)]
        assert answer["nodes"]["id"] == there
        assert answer["missing"] == [each for each in ids if each not in there]
        assert {*keys(answer)} == edges_among(state, there, {}, at)
        assert answer["left_out"] == []


def test_lifespans_match_the_model_and_include_deleted_rows(model: Model) -> None:
    answer = drawn(model, ids=[*NAMES, "nobody"], valid_at="any", lives=True)
    once = {each for state in model.states for each in state.nodes}
    assert answer["nodes"]["id"] == [each for each in NAMES if each in once]
    assert answer["missing"] == [each for each in (*NAMES, "nobody") if each not in once]
    assert answer["nodes"]["lives"] == [model.lives(each) for each in answer["nodes"]["id"]]
    assert {*keys(answer)} == {key for state in model.states for key in state.edges}
    assert answer["edges"]["lives"] == [model.lives(key) for key in keys(answer)]
    assert answer["nodes"]["degree"] == [model.present.degree(each) for each in answer["nodes"]["id"]]
    sequence = len(model.states) // 2
    past = drawn(model, around=NAMES[:3], as_of=sequence, valid_at="any", lives=True, depth=2, relation_types=["r"])
    found = around(
        model.states[sequence],
        [each for each in NAMES[:3] if each in model.states[sequence].nodes],
        {"depth": 2, "relation_types": ["r"]},
        None,
    )
    assert past["nodes"]["id"] == found.nodes
    assert past["nodes"]["lives"] == [model.lives(each) for each in found.nodes]
    every = {key for state in model.states for key in state.edges if {*key[:2]} <= {*found.nodes} and key[2] == "r"}
    assert {*keys(past)} == every


def test_overview_begins_with_nodes_of_highest_degree(model: Model) -> None:
    for sequence in (len(model.states) - 1, len(model.states) // 2):
        moment, state = {"as_of": sequence, "valid_at": "any"}, model.states[sequence]
        whole = drawn(model, overview=3, **moment)
        assert picture(whole) == around(state, sorted(state.nodes), {"depth": 0}, None)
        some = drawn(model, overview=3, types=["a"], **moment)
        assert some["nodes"]["id"] == sorted(each for each, row in state.nodes.items() if row.type == "a")
    state = model.present
    by_degree = sorted(state.nodes, key=lambda each: (-state.degree(each), each))
    answer = drawn(model, overview=2, max_nodes=7, per_node=2, valid_at="any")
    assert picture(answer) == around(state, by_degree[:2], {"max_nodes": 7, "per_node": 2}, None)


def test_commit_timeline(model: Model) -> None:
    latest = len(model.states) - 1
    for wanted in (1, 4, 120, 5000, -3):
        found = accepted(model.http.get(f"{model.api}/timeline", params={"buckets": wanted}))
        assert (found["sequence"], found["oldest"]) == (latest, 0)
        buckets = found["buckets"]
        assert len(buckets) <= min(max(wanted, 1), 1000)
        assert [each[0] for each in buckets] == [1, *(each[1] + 1 for each in buckets[:-1])]
        assert buckets[-1][1] == latest
        assert all(last - first + 1 == count > 0 and start <= end for first, last, start, end, count in buckets)
    assert accepted(model.http.get(f"{model.api}/timeline"))["buckets"]


def test_labels_use_the_first_available_text(http: httpx.Client, api: str) -> None:
    labels = {
        "summary": {"summary": " The  summary ", "name": "own", "attributes": {"name": "n"}, "content": "c"},
        "own": {"name": "own", "attributes": {"name": "n"}, "content": "c"},
        "n": {"attributes": {"label": "l", "title": "t", "name": "n"}, "content": "c"},
        "t": {"attributes": {"name": {"x": 1}, "label": "l", "title": "t"}, "content": "c"},
        "l": {"attributes": {"label": "l", "title": "", "name": None}, "content": "c"},
        "long": {"content": "word\n" * 100_000},
        "bare": {"attributes": {"x": 1}, "content": " \n"},
    }
    entities = {name: fields.pop("name") for name, fields in labels.items() if "name" in fields}
    accepted(http.post(f"{api}/inject", json={"nodes": [{"id": e, "type": "t", **f} for e, f in labels.items()]}))
    answer = accepted(http.post(f"{api}/graph", json={"ids": [*labels], "fields": ["label"]}))
    shown = dict(zip(answer["nodes"]["id"], answer["nodes"]["label"], strict=True))
    words = ("word " * 16)[:79] + "…"
    assert entities
    assert shown == {"summary": "The summary", "own": "n", "n": "n", "t": "t", "l": "l", "long": words, "bare": "bare"}
    assert answer["nodes"].keys() == {"id", "type", "label"}


def test_drawing_returns_requested_columns(http: httpx.Client, store: str, api: str) -> None:
    told = {"content": "Tea is hot", "layer": 0, "tags": ["drink"]}
    above = accepted(http.post(f"/api/memories?store={store}", json=told), 201)["id"]
    below = accepted(
        http.post(f"/api/memories?store={store}", json={"content": "Green tea", "layer": 1, "parent_id": above}), 201
    )["id"]
    wanted = ["version", "tags", "layer", "confidence", "parent"]
    answer = accepted(http.post(f"{api}/graph", json={"ids": [above, below], "fields": wanted}))["nodes"]
    assert answer.keys() == {"id", "type", *wanted}
    assert (answer["layer"], answer["parent"], answer["tags"]) == ([0, 1], [None, above], [["drink"], []])
    assert all(0 < each <= 1 for each in answer["confidence"])
    then = accepted(http.get(api))["sequence"]
    accepted(http.put(f"/api/memories/{below}", params={"store": store}, json={"parent_id": ""}))
    asked = {"ids": [above, below], "fields": ["parent", "confidence"]}
    assert "parent" not in accepted(http.post(f"{api}/graph", json=asked))["nodes"]
    former = accepted(http.post(f"{api}/graph", json={**asked, "as_of": then}))["nodes"]
    assert former["parent"] == [None, above]
    assert len(former["confidence"]) == 2
    assert accepted(http.post(f"{api}/graph", json={"ids": [below], "fields": []}))["nodes"].keys() == {"id", "type"}


def test_drawing_links_and_merged_nodes(http: httpx.Client, api: str) -> None:
    nodes = [{"id": each, "type": "t"} for each in "abc"]
    edges = [
        {"from": "a", "to": "x", "relation_type": "sees", "to_graph": "elsewhere", "weight": 0.5},
        {"from": "a", "to": "b", "relation_type": "knows"},
    ]
    accepted(http.post(f"{api}/inject", json={"nodes": nodes, "edges": edges}))
    accepted(http.post(f"{api}/nodes/c/merge", json={"into": "b"}))
    for moment in ({}, {"as_of": 2}):
        answer = accepted(http.post(f"{api}/graph", json={"around": ["c"], **moment}))
        assert answer["redirected"] == {"c": "b"}
        assert (answer["nodes"]["id"], answer["missing"]) == (["b", "a"], [])
        kind = answer["relation_types"].index("sees")
        assert answer["links"] == {"from": [1], "to_graph": ["elsewhere"], "to": ["x"], "type": [kind], "weight": [0.5]}


def test_links_have_lifespans_after_deletion(http: httpx.Client, api: str) -> None:
    link = {"from": "a", "to": "x", "relation_type": "sees", "to_graph": "elsewhere"}
    accepted(http.post(f"{api}/inject", json={"nodes": [{"id": "a", "type": "t"}], "edges": [link]}))
    accepted(
        http.post(f"{api}/inject", json={"edges": [{**link, "weight": 0.5, "valid_from": "2020-01-01T00:00:00Z"}]})
    )
    accepted(http.post(f"{api}/inject", json={"edges": [{**link, "to": "y"}]}))
    gone = {"from": "a", "to": "y", "relation_type": "sees", "to_graph": "elsewhere"}
    accepted(http.request("DELETE", f"{api}/edges", json=gone))
    links = accepted(http.post(f"{api}/graph", json={"ids": ["a"], "lives": True}))["links"]
    assert (links["to"], links["weight"]) == (["x", "y"], [0.5, 1.0])
    assert links["lives"] == [[[2, None], [1, 2]], [[3, 4]]]
    assert links["valid_from"] == ["2020-01-01T00:00:00.000000Z", None]
    then = accepted(http.post(f"{api}/graph", json={"ids": ["a"], "lives": True, "as_of": 1}))["links"]
    assert (then["to"], then["lives"][0][-1]) == (["x", "y"], [1, 2])
    assert "lives" not in accepted(http.post(f"{api}/graph", json={"ids": ["a"]}))["links"]


def test_newest_lifespans_are_returned(http: httpx.Client, api: str) -> None:
    for number in range(103):
        accepted(http.post(f"{api}/inject", json={"nodes": [{"id": "n", "type": "t", "content": str(number)}]}))
    nodes = accepted(http.post(f"{api}/graph", json={"ids": ["n"], "lives": True}))["nodes"]
    assert nodes["lives_cut"] == [0]
    assert nodes["lives"] == [[[103, None], *([first, first + 1] for first in range(102, 3, -1))]]


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({}, ""),
        ({"ids": ["a"], "overview": 3}, "ids"),
        ({"ids": ["a"], "around": ["b"]}, "ids"),
        ({"ids": ["a"] * 10_001}, "ids"),
        ({"around": ["a"] * 1_001}, "around"),
        ({"ids": ["a", ""]}, "ids[1]"),
        ({"ids": ["é" * 300]}, "ids[0]"),
        ({"ids": "a"}, "ids"),
        ({"ids": ["a"], "fields": ["content"]}, "fields[0]"),
        ({"ids": ["a"], "fields": ["label"] * 17}, "fields"),
        ({"around": ["a"], "direction": "sideways"}, "direction"),
        ({"around": ["a"], "depth": 1.5}, "depth"),
        ({"around": ["a"], "max_nodes": "7"}, "max_nodes"),
        ({"overview": 3, "types": [""]}, "types[0]"),
        ({"overview": 3, "valid_at": "soon"}, "valid_at"),
        ({"overview": 3, "as_of": "soon"}, "as_of"),
        ({"overview": 3, "as_of": -1}, "as_of"),
        ({"overview": 3, "follow": True}, "follow"),
    ],
)
def test_invalid_drawing_requests_are_refused(http: httpx.Client, api: str, body: dict[str, Any], place: str) -> None:
    accepted(http.post(f"{api}/inject", json={"nodes": [{"id": "a", "type": "t"}]}))
    told = refusal(http.post(f"{api}/graph", json=body), 400)
    assert [each["path"] for each in told.get("errors", [])][:1] == ([place] if place else [])


def test_limits_are_clamped(http: httpx.Client, api: str) -> None:
    nodes = [{"id": f"n{number}", "type": "t"} for number in range(5)]
    edges = [{"from": "n0", "to": f"n{number}", "relation_type": "r"} for number in range(1, 5)]
    accepted(http.post(f"{api}/inject", json={"nodes": nodes, "edges": edges}))
    for wanted, count in (
        ({"depth": -1}, 1),
        ({"depth": 1 << 70}, 5),
        ({"per_node": -5}, 2),
        ({"per_node": 1 << 40, "max_nodes": 1 << 40}, 5),
        ({"max_nodes": 0}, 1),
    ):
        answer = accepted(http.post(f"{api}/graph", json={"around": ["n0"], **wanted}))
        assert len(answer["nodes"]["id"]) == count, wanted
    assert len(accepted(http.post(f"{api}/graph", json={"overview": -1, "max_nodes": 2}))["nodes"]["id"]) == 2
    assert accepted(http.post(f"{api}/graph", json={"ids": []}))["nodes"] == {
        "id": [],
        "type": [],
        "label": [],
        "degree": [],
    }


def test_drawing_of_empty_and_missing_stores(http: httpx.Client, api: str) -> None:
    refusal(http.post(f"{api}/graph", json={"overview": 3}), 404)
    refusal(http.get(f"{api}/timeline"), 404)
    accepted(http.put(api), 201)
    answer = accepted(http.post(f"{api}/graph", json={"overview": 3, "lives": True}))
    assert (answer["nodes"]["id"], answer["edges"]["from"], answer["truncated"]) == ([], [], False)
    assert accepted(http.get(f"{api}/timeline"))["buckets"] == []
    refusal(http.get(f"{api}/timeline?buckets=many"), 400)


def test_lifespans_require_history(http: httpx.Client, api: str) -> None:
    accepted(http.put(api, json={"history": "none"}), 201)
    accepted(http.post(f"{api}/inject", json={"nodes": [{"id": "a", "type": "t"}]}))
    assert accepted(http.post(f"{api}/graph", json={"overview": 3}))["nodes"]["id"] == ["a"]
    refusal(http.post(f"{api}/graph", json={"overview": 3, "lives": True}), 409)
    refusal(http.get(f"{api}/timeline"), 409)
