"""The payloads of the versioned store's contract, sent to REST and to MCP."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import httpx
import pytest

from kgserve.platform.codecs import decode_json
from tests.server.http.serving import RunningServer
from tests.server.mcp import talking

Json = dict[str, Any]
VERSIONED = {"field_names": "versioned"}


class PayloadRefusal(Exception):
    """Refusal of a payload, with the data that the server wrote anyway."""

    def __init__(self, text: str, answer: Mapping[str, Any] | None = None) -> None:
        super().__init__(text)
        self.answer = answer or {}


class Mouth(Protocol):
    """Interface of a store: an operation by name, with its payload. Raises Refused."""

    def __call__(self, operation: str, graph: str, /, **payload: Any) -> Json: ...


class Rest:
    """REST: operations by method, path, and whether answers can have the contract's names."""

    PATHS: Mapping[str, tuple[str, str, bool]] = {
        "create": ("PUT", "", False),
        "update": ("PATCH", "", False),
        "graph": ("GET", "", False),
        "drop": ("DELETE", "", False),
        "put_node": ("POST", "/nodes", True),
        "put_subgraph": ("POST", "/subgraph", False),
        "node": ("GET", "/nodes/{lineage_id}", True),
        "history": ("GET", "/nodes/{lineage_id}/history", True),
        "nodes": ("GET", "/nodes", True),
        "outgoing": ("GET", "/nodes/{lineage_id}/outgoing", True),
        "incoming": ("GET", "/nodes/{lineage_id}/incoming", True),
        "traverse": ("POST", "/traverse", True),
        "search": ("POST", "/search", True),
        "search_batch": ("POST", "/search/batch", True),
        "links": ("GET", "/links", False),
        "schema": ("GET", "/schema", True),
        "tags": ("GET", "/tags", False),
    }
    IN_QUERY: Mapping[str, str] = {"kinds": "kind", "tags": "tag", "edge_kinds": "kind"}

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def __call__(self, operation: str, graph: str, /, **payload: Any) -> Json:
        method, path, renamed = self.PATHS[operation]
        query: Json = dict(VERSIONED) if renamed else {}
        if "{" in path:
            path = path.format(lineage_id=payload.pop("lineage_id"))
        if method in ("GET", "DELETE"):
            query |= {self.IN_QUERY.get(name, name): value for name, value in payload.items()}
            found = self._http.request(method, f"/api/memory/{graph}{path}", params=query)
        else:
            found = self._http.request(method, f"/api/memory/{graph}{path}", params=query, json=payload)
        answer = decode_json(found.content)
        if not found.is_success:
            raise PayloadRefusal(f"{answer['type']} {answer['detail']}", answer)
        return answer


class Mcp:
    """MCP: the same operations by tools; ``graph_id`` names the store, and ``detail`` asks for complete answers."""

    TOOLS: Mapping[str, tuple[str, Json]] = {
        "create": ("configure_store", {"create": True}),
        "update": ("configure_store", {}),
        "graph": ("describe_store", {}),
        "drop": ("drop_store", {}),
        "put_node": ("put_node", VERSIONED),
        "put_subgraph": ("put_subgraph", {}),
        "node": ("get_entity", VERSIONED | {"detail": True}),
        "history": ("entity_history", VERSIONED | {"detail": True}),
        "nodes": ("list_entities", VERSIONED | {"detail": True}),
        "outgoing": ("list_relations", VERSIONED | {"detail": True, "direction": "outgoing"}),
        "incoming": ("list_relations", VERSIONED | {"detail": True, "direction": "incoming"}),
        "traverse": ("traverse_knowledge_graph", VERSIONED | {"detail": True}),
        "search": ("search_knowledge", VERSIONED | {"detail": True}),
        "search_batch": ("search_batch", VERSIONED | {"detail": True}),
        "links": ("describe_store", {}),
        "schema": ("describe_schema", VERSIONED),
        "tags": ("list_tags", {}),
    }

    def __init__(self, url: str) -> None:
        self._url = url

    def __call__(self, operation: str, graph: str, /, **payload: Any) -> Json:
        tool, more = self.TOOLS[operation]
        if "name" in payload:  # In an agent's store `name` is its title, so the description for people differs.
            payload["description"] = payload.pop("name")
        found = talking.result(self._url, tool, {"graph_id": graph, **more, **payload})
        answer = found.structured_content or {}
        if found.is_error:
            raise PayloadRefusal(talking.text_of(found), answer)
        return answer


@pytest.fixture(scope="module", params=["rest", "mcp"])
def ask(request: pytest.FixtureRequest, served: RunningServer, http: httpx.Client) -> Iterator[Mouth]:
    with talking.lines(served.url):
        yield Rest(http) if request.param == "rest" else Mcp(served.url)


@pytest.fixture
def refusal(ask: Mouth) -> Any:
    def refused(operation: str, graph: str, /, **payload: Any) -> PayloadRefusal:
        with pytest.raises(PayloadRefusal) as caught:
            ask(operation, graph, **payload)
        return caught.value

    return refused


def within(answer: Json, expected: Json) -> bool:
    return {name: answer.get(name) for name in expected} == expected


# Subgraphs

NODE: Json = {
    "ref": "a",
    "kind": "decision",
    "content": "Use JWT.",
    "summary": "JWT",
    "tags": ["status:open", "auth"],
    "metadata": {"by": {"id": "ada"}, "type": 1},
    "freshness_at": "2020-01-01T00:00:00Z",
    "created_by": "agent-7",
}
EDGE: Json = {
    "from_ref": "a",
    "to_lineage": "kept",
    "kind": "SUPPORTS",
    "metadata": {"why": 1},
    "ordinal": 1,
    "created_by": "agent-7",
}


def test_subgraph_payload(ask: Mouth, store: str) -> None:
    made = ask(
        "put_subgraph",
        store,
        graph_id=store,
        nodes=[NODE, {"ref": "b", "lineage_id": "kept", "based_on_version": 3, "kind": "note", "content": ""}],
        edges=[EDGE, EDGE | {"to_graph": store, "kind": "CITES"}, EDGE | {"to_graph": "another", "kind": "CITES"}],
    )
    first, second = made["nodes"]
    one = first["lineage_id"]
    assert first == {"ref": "a", "lineage_id": one, "version": 1, "created": True}
    assert second == {"ref": "b", "lineage_id": "kept", "version": 1, "created": True}
    ids = [f"{one}~SUPPORTS~kept", f"{one}~CITES~kept", f"{one}~CITES~kept~another"]
    assert made["edges"] == [{"edge_id": each} for each in ids]
    again = ask(
        "put_subgraph", store, nodes=[{"lineage_id": "kept", "based_on_version": 1, "kind": "n", "content": "2"}]
    )
    assert within(again["nodes"][0], {"lineage_id": "kept", "version": 2, "created": False})
    found = ask("node", store, lineage_id=one)
    said = {name: value for name, value in NODE.items() if name not in ("ref", "freshness_at")}
    assert within(found["node"], said | {"lineage_id": one, "version": 1, "is_stale": True})
    assert found["node"]["freshness_at"].startswith("2020-01-01T00:00:00")
    edges = {(each["kind"], each.get("to_graph")): each for each in found["outgoing"]}
    assert {*edges} == {("SUPPORTS", None), ("CITES", None), ("CITES", "another")}
    for each in edges.values():
        assert within(each, {"from_lineage": one, "to_lineage": "kept", "ordinal": 1, "created_by": "agent-7"})
        assert each["metadata"]["why"] == 1


@pytest.mark.parametrize(
    ("edge", "words"),
    [
        ({"from_ref": "a", "from_lineage": "a", "to_ref": "a"}, "only one of from_ref/from_lineage allowed"),
        ({"from_ref": "a", "to_ref": "a", "to_lineage": "a"}, "only one of to_ref/to_lineage allowed"),
        ({"to_ref": "a"}, "one of from_ref/from_lineage required"),
        ({"from_ref": "a"}, "one of to_ref/to_lineage required"),
        ({"from_ref": "later", "to_ref": "a"}, "ref not found: later"),
        ({"from_ref": "bad", "to_ref": "a"}, "ref not found: bad"),
        ({"from_ref": "a", "to_lineage": "nobody"}, "no such node"),
        ({"from_ref": "a", "to_ref": "a", "kind": ""}, "kind: is required"),
        ({"from_ref": "a", "to_ref": "a", "metadata": {"x": "y" * 300_000}}, "metadata"),
    ],
)
def test_subgraph_edge_fails_independently(ask: Mouth, store: str, edge: Json, words: str) -> None:
    nodes: list[Json] = [{"ref": "a", "kind": "note", "content": ""}, {"ref": "bad", "content": "no kind"}]
    good = {"from_ref": "a", "to_ref": "a", "kind": "SELF"}
    made = ask("put_subgraph", store, nodes=nodes, edges=[good, {"kind": "r"} | edge, good])
    assert [each["created"] for each in made["nodes"]] == [True, False]
    assert within(made["nodes"][1], {"ref": "bad", "error": "invalid_input: kind: is required"})
    assert made["edges"][0] | {"created": False} == made["edges"][2]
    assert made["edges"][0]["edge_id"]
    assert words in made["edges"][1]["error"]


def test_subgraph_node_fails_independently(ask: Mouth, store: str) -> None:
    wrong: list[Json] = [
        {"kind": ["note"]},
        {"kind": "note", "metadata": {"x": "y" * 300_000}},
        {"kind": "note", "knid": 1},
    ]
    nodes = [{"ref": str(place), **each} for place, each in enumerate([{"kind": "note"}, *wrong, {"kind": "note"}])]
    made = ask("put_subgraph", store, nodes=nodes)["nodes"]
    assert [each["ref"] for each in made] == ["0", "1", "2", "3", "4"]
    assert [each["created"] for each in made] == [True, False, False, False, True]
    for each, word in zip(made[1:4], ("kind", "metadata", "knid"), strict=True):
        assert word in each["error"]


@pytest.mark.parametrize(
    ("nodes", "edges", "word"), [(51, 0, "nodes"), (0, 101, "edges"), (0, 0, "nodes")], ids=["51", "101", "none"]
)
def test_malformed_subgraph_is_refused_without_writes(
    ask: Mouth, refusal: Any, store: str, nodes: int, edges: int, word: str
) -> None:
    payload: Json = {"nodes": [{"kind": "note"}] * nodes, "edges": [{"kind": "r"}] * edges}
    assert word in str(refusal("put_subgraph", store, **payload))
    assert "no store" in str(refusal("graph", store))


def test_a_payload_of_another_graph_is_refused(ask: Mouth, refusal: Any, store: str) -> None:
    # Tools have no other place for the store; there the payload names two.
    said: Json = {"graph_id": "another"} | ({} if isinstance(ask, Rest) else {"index": store})
    for operation, payload in (("put_subgraph", {"nodes": [{"kind": "note"}]}), ("put_node", {"kind": "note"})):
        assert "graph_id" in str(refusal(operation, store, **said, **payload))
    for name in (store, "another"):
        assert "no store" in str(refusal("graph", name))


def test_null_clears_an_ordinal_and_omission_keeps_it(ask: Mouth, store: str) -> None:
    edge: Json = {"from_ref": "a", "to_ref": "a", "kind": "r"}

    def ordinal(**fields: Any) -> Any:
        ask("put_subgraph", store, nodes=[{"ref": "a", "lineage_id": "a", "kind": "note"}], edges=[edge | fields])
        return ask("outgoing", store, lineage_id="a")["edges"][0].get("ordinal")

    assert [ordinal(ordinal=3), ordinal(), ordinal(metadata={"m": 1})] == [3, 3, 3]
    assert [ordinal(ordinal=None), ordinal(ordinal=0)] == [None, 0]


def test_subgraph_size_limits(ask: Mouth, store: str) -> None:
    nodes = [{"ref": str(number), "kind": "note"} for number in range(50)]
    edges = [{"from_ref": str(n % 50), "to_ref": str(n // 2), "kind": "r"} for n in range(100)]
    made = ask("put_subgraph", store, nodes=nodes, edges=edges)
    assert all(each["created"] for each in made["nodes"])
    assert len({each["edge_id"] for each in made["edges"]}) == 100


# Versions


def test_version_payload(ask: Mouth, refusal: Any, store: str) -> None:
    whole = {name: value for name, value in NODE.items() if name != "ref"}
    first = ask("put_node", store, graph_id=store, lineage_id="", based_on_version=9, **whole)
    assert (first["created"], first["node"]["version"], first["node"]["kind"]) == (True, 1, "decision")
    one = first["node"]["lineage_id"]
    assert ask("put_node", store, kind="note", content="")["node"]["lineage_id"] != one
    second = ask("put_node", store, lineage_id=one, kind="note", content="two", based_on_version=1)
    assert (second["created"], second["node"]["version"]) == (False, 2)
    assert {*second["cleared"]} >= {"metadata", "summary", "tags"}
    third = ask("put_node", store, lineage_id=one, kind="note", content="three", based_on_version=1)
    assert (third["node"]["version"], third["replaced_version"]) == (3, 2)
    assert "conflicts" not in third["node"]
    former = ask("node", store, lineage_id=one, version=1)["node"]
    assert within(former, {name: NODE[name] for name in ("kind", "content", "metadata", "created_by")})
    assert (former["superseded_by"], former["is_current"]) == (2, False)
    for moment in (second["sequence"], str(second["sequence"])):
        read = ask("node", store, lineage_id=one, as_of=moment)["node"]
        [walked] = ask("traverse", store, start_id=one, as_of=moment)["nodes"]
        for then in (read, walked):
            assert (then["version"], then["content"], then["superseded_by"]) == (2, "two", 3)
    states = [state["node"] for state in ask("history", store, lineage_id=one)["states"]]
    assert [(each["version"], each["lineage_id"]) for each in states] == [(3, one), (2, one), (1, one)]
    assert "kind" in str(refusal("put_node", store, content="x"))
    assert "metadata" in str(refusal("put_node", store, kind="note", metadata={"x": "y" * 300_000}))


def test_concurrent_put_reports_the_conflict(ask: Mouth, refusal: Any, store: str) -> None:
    ask("create", store, conflict_policy="manual")
    put: Json = {"lineage_id": "plan", "kind": "note", "metadata": {"by": "ada"}}
    ask("put_node", store, **put, content="one")
    ask("put_node", store, **put, content="two", based_on_version=1)
    said = refusal("put_node", store, **put, content="three", based_on_version=1)
    assert "conflict_manual" in str(said)
    kept = {"lineage_id": "plan", "kind": "note", "version": 3, "conflicts": [2], "metadata": {"by": "ada"}}
    assert within(said.answer["node"], kept)
    assert not {"id", "type", "attributes"} & said.answer["node"].keys()
    assert within(ask("node", store, lineage_id="plan")["node"], kept)
    assert ask("node", store, lineage_id="plan", version=2)["node"]["is_current"]
    late = ask("put_subgraph", store, nodes=[put | {"content": "four", "based_on_version": 1}])["nodes"][0]
    words = "conflict_manual: concurrent write under manual conflict policy; conflict recorded"
    assert within(late, {"error": words, "lineage_id": "plan", "version": 4, "created": False})
    assert "conflicts" not in ask("put_node", store, **put, content="all", based_on_version=4)["node"]


def test_kinds_outside_the_whitelist_are_refused(ask: Mouth, refusal: Any, store: str) -> None:
    ask("create", store, kind_whitelist=["note"])
    assert "'x'" in str(refusal("put_node", store, kind="x", content=""))
    made = ask("put_subgraph", store, nodes=[{"kind": "x", "content": ""}, {"kind": "note", "content": ""}])["nodes"]
    assert made[0]["error"].startswith("kind_not_allowed: kind: ")
    assert made[1]["created"]


# Graphs


def test_settings_payload(ask: Mouth, store: str) -> None:
    name = "name" if isinstance(ask, Rest) else "description"
    payload: Json = {"conflict_policy": "", "kind_whitelist": ["note"], "metadata": {"owner": "ada"}}
    assert ask("create", store, name="Decisions", **payload)["created"]
    chosen = payload | {name: "Decisions", "conflict_policy": "lww"}
    assert within(ask("graph", store), chosen)
    ask("update", store, conflict_policy="manual")
    assert within(ask("graph", store), chosen | {"conflict_policy": "manual"})
    ask("update", store, conflict_policy="")
    ask("update", store, name="", kind_whitelist=[], metadata={})
    left = ask("graph", store)
    assert left["conflict_policy"] == "manual"
    assert not any(left.get(each) for each in (name, "kind_whitelist", "metadata"))


# Reading


@pytest.fixture(scope="module")
def library(ask: Mouth) -> str:
    """Store with a chain a → b → c, an edge of another kind, and one into another store."""
    name = f"library-{type(ask).__name__.lower()}"
    behind = f"{name}-behind"
    nodes: list[Json] = [
        {"ref": "a", "lineage_id": "a", "kind": "note", "content": "red tea", "tags": ["topic:tea", "x"]},
        {"ref": "b", "lineage_id": "b", "kind": "note", "content": "green tea", "tags": ["topic:tea"]},
        {"ref": "c", "lineage_id": "c", "kind": "task", "content": "drink tea", "summary": "s", "created_by": "ada"},
        {"lineage_id": "old", "kind": "task", "content": "old tea", "freshness_at": "2020-01-01T00:00:00Z"},
    ]
    edges: list[Json] = [
        {"from_ref": "a", "to_ref": "b", "kind": "NEXT", "ordinal": 2},
        {"from_ref": "a", "to_ref": "c", "kind": "SEES", "ordinal": 1},
        {"from_ref": "b", "to_ref": "c", "kind": "NEXT"},
        {"from_ref": "b", "to_lineage": "far", "to_graph": behind, "kind": "NEXT"},
    ]
    made = ask("put_subgraph", name, graph_id=name, nodes=nodes, edges=edges)
    assert not any("error" in each for each in (*made["nodes"], *made["edges"]))
    ask("put_subgraph", behind, nodes=[{"lineage_id": "far", "kind": "note", "content": "elsewhere"}])
    return name


OPTIONS: Json = {"max_depth": 3, "edge_kinds": ["NEXT"], "follow_symlinks": False, "max_nodes": 10}


@pytest.mark.parametrize(
    ("start", "options", "reached"),
    [
        ("a", {}, ["a", "b", "c"]),
        ("a", {"direction": ""}, ["a", "b", "c"]),
        ("a", {"direction": "outgoing", "max_depth": 1}, ["a", "b"]),
        ("a", {"edge_kinds": ["SEES"]}, ["a", "c"]),
        ("a", {"edge_kinds": [], "max_depth": 1}, ["a", "b", "c"]),
        ("a", {"edge_kinds": ["SEES", "NEXT"], "max_nodes": 2}, ["a", "b"]),
        ("c", {"direction": ""}, ["c"]),
        ("c", {"direction": "incoming"}, ["c", "b", "a"]),
        ("b", {"direction": "both", "max_depth": 1}, ["b", "a", "c"]),
        ("a", {"follow_symlinks": True}, ["a", "b", "c", "far"]),
        ("b", {"follow_symlinks": True, "direction": ""}, ["b", "c", "far"]),
    ],
)
def test_traversal_options(ask: Mouth, library: str, start: str, options: Json, reached: list[str]) -> None:
    given = OPTIONS | {"direction": "outgoing"} | options
    found = ask("traverse", library, start_id=start, **given)
    assert [each["lineage_id"] for each in found["nodes"]] == reached
    assert {each["kind"] for each in found["edges"]} <= {*(given["edge_kinds"] or ("NEXT", "SEES"))}
    assert ("store" in found["nodes"][0]) == given["follow_symlinks"]


def test_conflicting_option_aliases_are_refused(ask: Mouth, refusal: Any, library: str) -> None:
    assert ask("traverse", library, start_id="a", max_depth=1, depth=1)["count"] == 3
    for both in ({"max_depth": 2, "depth": 3}, {"edge_kinds": ["NEXT"], "relation_types": ["SEES"]}):
        assert next(iter(both)) in str(refusal("traverse", library, start_id="a", **both))
    both = {"kinds": ["note"], "types": ["task"]}
    assert "kinds" in str(refusal("search", library, query="tea", **both))
    assert "kinds" in str(refusal("search_batch", library, queries=[{"query": "tea", **both}]))


def test_edges_of_a_node_by_kind(ask: Mouth, library: str) -> None:
    def ends(operation: str, end: str, lineage: str, **payload: Any) -> list[Any]:
        return [each[end] for each in ask(operation, library, lineage_id=lineage, **payload)["edges"]]

    assert ends("outgoing", "to_lineage", "a") == ["c", "b"]
    assert ends("outgoing", "to_lineage", "a", edge_kinds=["NEXT"]) == ["b"]
    assert ends("outgoing", "to_lineage", "b") == ["c", "far"]
    assert ends("incoming", "from_lineage", "c", edge_kinds=["SEES"]) == ["a"]


def test_where_links_lead_and_come_from(ask: Mouth, refusal: Any, library: str) -> None:
    behind = f"{library}-behind"

    def manifest(graph: str) -> Json:
        found = ask("links", graph)
        sides = found.get("links", {}) if isinstance(ask, Mcp) else found
        named = {side: sides.get(side, {}) for side in ("outbound", "inbound")}
        if isinstance(ask, Mcp):
            return named
        return {side: {each["graph_id"]: each["edge_count"] for each in listed} for side, listed in named.items()}

    assert manifest(library) == {"outbound": {behind: 1}, "inbound": {}}
    assert manifest(behind) == {"outbound": {}, "inbound": {library: 1}}
    for operation in ("incoming", "node"):
        key = "edges" if operation == "incoming" else "incoming"
        assert ask(operation, behind, lineage_id="far")[key] == []
        [edge] = ask(operation, behind, lineage_id="far", follow_symlinks=True)[key]
        assert within(edge, {"store": library, "from_lineage": "b", "to_graph": behind, "kind": "NEXT"})
    for alone in ({"as_of": "1"}, {"version": 1}):
        assert "follow_symlinks" in str(refusal("node", behind, lineage_id="far", follow_symlinks=True, **alone))


def test_drop_reports_inbound_links(ask: Mouth, store: str) -> None:
    there = f"{store}-there"
    ask("put_subgraph", there, nodes=[{"lineage_id": "x", "kind": "note"}])
    nodes = [{"ref": name, "kind": "note"} for name in "ab"]
    edges = [{"from_ref": name, "to_lineage": "x", "to_graph": there, "kind": "r"} for name in "ab"]
    ask("put_subgraph", store, nodes=nodes, edges=edges)
    assert within(ask("drop", there, confirm=there), {"dropped": there, "inbound": 2})
    assert within(ask("drop", store, confirm=store), {"dropped": store, "inbound": 0})


@pytest.mark.parametrize(
    ("filters", "listed"),
    [
        ({}, ["a", "b", "c", "old"]),
        ({"kinds": [], "tags": [], "limit": 2, "offset": 1}, ["b", "c"]),
        ({"kinds": ["task"]}, ["c", "old"]),
        ({"kinds": ["task", "note"], "limit": 3}, ["a", "b", "c"]),
        ({"tags": ["topic:tea"]}, ["a", "b"]),
        ({"kinds": ["note"], "tags": ["x", "topic:tea"]}, ["a"]),
    ],
)
def test_nodes_by_filter(ask: Mouth, library: str, filters: Json, listed: list[str]) -> None:
    for compact in (False, True):
        found = ask("nodes", library, **filters, compact=compact)["nodes"]
        assert [each["lineage_id"] for each in found] == listed
        kept = {"lineage_id", "version", "kind", "created_at"}
        assert all(kept <= each.keys() for each in found)
        cleared = {"content", "metadata", "freshness_at", "created_by", "superseded_by", "conflicts"}
        assert all(("content" in each) != compact and not (compact and cleared & each.keys()) for each in found)


def test_compact_list_as_of_marks_current_versions(ask: Mouth, store: str) -> None:
    for content in ("one", "two"):
        ask("put_node", store, lineage_id="a", kind="note", content=content)
    [then] = ask("nodes", store, compact=True, as_of="1")["nodes"]
    assert (then["version"], then["is_current"]) == (1, False)
    assert "superseded_by" not in then


def test_search_filters(ask: Mouth, library: str) -> None:
    asked: Json = {"query": "tea", "mode": "keyword", "at_least": 5}
    for filters, ids in (
        ({"kinds": [], "tags": [], "fresh_only": False, "limit": 20}, {"a", "b", "c", "old"}),
        ({"kinds": ["task"]}, {"c", "old"}),
        ({"kinds": ["task"], "fresh_only": True}, {"c"}),
        ({"tags": ["topic:tea", "x"]}, {"a"}),
    ):
        hits = ask("search", library, **asked, **filters)["hits"]
        assert {hit["node"]["lineage_id"] for hit in hits} == ids
        assert all(hit["score"] > 0 for hit in hits)
    assert len(ask("search", library, **asked, limit=1)["hits"]) == 1


def test_batch_search_merges_by_reciprocal_rank(ask: Mouth, refusal: Any, library: str) -> None:
    queries: list[Json] = [
        {"query": "green", "mode": "keyword"},
        {"query": "red", "mode": "keyword"},
        {"query": "green", "mode": "keyword", "kinds": ["note"]},
    ]
    found = ask("search_batch", library, queries=queries, at_least=5)
    assert [(hit["node"]["lineage_id"], hit["queries_matched"]) for hit in found["hits"]] == [("b", [0, 2]), ("a", [1])]
    assert [hit["score"] for hit in found["hits"]] == pytest.approx([2 / 61, 1 / 61])
    assert (found["query_count"], found["unique_hits"], found["per_query_hits"]) == (3, 2, [1, 1, 1])
    # For equal scores the first one found comes first.
    for first, second in (("red", "green"), ("green", "red")):
        both = [{"query": word, "mode": "keyword"} for word in (first, second)]
        hits = ask("search_batch", library, queries=both)["hits"]
        assert [hit["node"]["content"].split()[0] for hit in hits] == [first, second]
    for wrong in ([], queries * 3, [*queries, {"query": ""}], [*queries, {"query": "x", "mode": "none"}]):
        assert "queries" in str(refusal("search_batch", library, queries=wrong))


@pytest.fixture(scope="module")
def many(ask: Mouth, http: httpx.Client) -> str:
    """Store of 120 nodes with the same content, each with its own tag."""
    name = "many-alike"
    rows = [{"id": f"n{n}", "type": "note", "content": "alike", "tags": [f"t:{n}"]} for n in range(120)]
    assert http.post(f"/api/memory/{name}/inject", json={"nodes": rows}).is_success
    return name


@pytest.mark.parametrize(
    ("each", "total", "of_each", "in_all"),
    [(None, None, 20, 20), (0, 0, 20, 20), (-5, -5, 20, 20), (30, 25, 30, 25), (5000, 5000, 50, 50)],
)
def test_limits_of_a_batch_search_are_clamped(
    ask: Mouth, many: str, each: int | None, total: int | None, of_each: int, in_all: int
) -> None:
    query: Json = {"query": "alike", "mode": "keyword"} | ({} if each is None else {"limit": each})
    payload: Json = {"queries": [query, query], "at_least": 1} | ({} if total is None else {"limit": total})
    found = ask("search_batch", many, **payload)
    assert found["per_query_hits"] == [of_each, of_each]
    assert len(found["hits"]) == in_all


def test_batch_search_hit_limit(ask: Mouth, many: str) -> None:
    queries = [{"query": "alike", "mode": "keyword", "limit": 50, "id_prefix": f"n{n}"} for n in range(1, 9)]
    found = ask("search_batch", many, queries=queries, limit=1000, at_least=1)
    assert found["unique_hits"] > 100
    # MCP replies have a size limit.
    assert len(found["hits"]) == 100 or "more" in found


# Vocabulary


def test_schema_payload(ask: Mouth, store: str) -> None:
    texts = [f"protein {n}" for n in range(12)]
    rows = [{"kind": "protein", "content": text, "tags": [f"protein:p{n}"]} for n, text in enumerate(texts)]
    ask("put_subgraph", store, nodes=[*rows, {"kind": "note", "content": "c", "summary": "s", "tags": ["plain"]}])
    found = ask("schema", store)
    assert (found["graph_id"], found["node_count"]) == (store, 13)
    first, second = found["kinds"]
    assert (first["kind"], first["count"], len(first["examples"])) == ("protein", 12, 3)
    assert {*first["examples"]} <= {*texts}
    assert second == {"kind": "note", "count": 1, "examples": ["s"]}
    [prefix] = found["tag_prefixes"]
    assert (prefix["prefix"], prefix["count"], len({*prefix["values"]})) == ("protein", 12, 10)
    assert {"tag": "plain", "count": 1} in found["tags"]


@pytest.mark.parametrize(("limit", "listed"), [(1000, 100), (0, 100), (-1, 100), (7, 7)])
def test_tags_are_capped(ask: Mouth, many: str, limit: int, listed: int) -> None:
    assert len(ask("tags", many, prefix="t:", limit=limit)["tags"]) == listed


def test_tags_are_ordered_by_frequency(ask: Mouth, library: str) -> None:
    assert ask("tags", library, prefix="")["tags"] == [{"tag": "topic:tea", "count": 2}, {"tag": "x", "count": 1}]
    assert [each["tag"] for each in ask("tags", library, prefix="topic:")["tags"]] == ["topic:tea"]
