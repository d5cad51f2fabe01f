from __future__ import annotations

import math
import re
import sys
import traceback
from collections.abc import Mapping
from functools import partial
from typing import Any

import anyio
import msgspec
import networkx as nx
import pytest
from defusedxml import ElementTree

from kgserve.client import AsyncClient, BatchHits, Client, Hits, Refused, Store, Traversal, Unreachable
from kgserve.errors import InvalidInput, NotFound
from kgserve.graph.answers import BatchSearchAnswer, SearchAnswer, TraverseAnswer
from kgserve.graph.request_bodies import EdgeInput, EdgeNdjsonLine, NodeInput, SearchQueryVariant
from tests.server.http.serving import RunningServer

ODD_IDS = ["a/b", ".", "..", "ü?#%2F", "a b", "x\ny", "%"]
NODES = [
    {"id": "req-1", "type": "requirement", "content": "User login with OAuth", "attributes": {"priority": 1}},
    {"id": "sym-1", "type": "code", "content": "OAuthHandler"},
    {"id": "sym-2", "type": "code", "content": "TokenStore"},
]
EDGES = [
    {"from": "req-1", "to": "sym-1", "relation_type": "IMPLEMENTED_BY", "weight": 0.5},
    {"from": "sym-1", "to": "sym-2", "relation_type": "CALLS"},
]


@pytest.fixture
def project(client: Client, store: str) -> Store:
    project = client.store(store)
    project.inject(NODES, EDGES)
    return project


def test_the_life_of_a_store(client: Client, store: str) -> None:
    assert client.create(store).created
    assert not client.create(store).created
    assert store in [each.name for each in client.stores().stores]
    with pytest.raises(InvalidInput):
        client.drop(store, confirm="another")
    assert client.drop(store, confirm=store).dropped == store
    with pytest.raises(NotFound, match=store):
        client.store(store).stats()


def test_server_level_operations(client: Client) -> None:
    assert client.health().status == "ok"
    assert client.ready().ready
    assert client.openapi()["openapi"] == "3.1.0"


def test_injected_rows_exist(project: Store) -> None:
    again = project.inject(NODES, EDGES, touch=False)
    assert (again.nodes_unchanged, again.edges_unchanged, again.sequence) == (3, 2, 1)
    found = project.node("req-1")
    assert found.node.attributes == {"priority": 1}
    assert [edge.target for edge in found.outgoing] == ["sym-1"]
    stats = project.stats()
    assert (stats.nodes, stats.edges) == (3, 2)


def test_structs_are_accepted(project: Store) -> None:
    done = project.inject(
        (NodeInput(id=each, type="t") for each in ("x", "y")),
        [EdgeInput(source="x", target="y", relation_type="r", attributes={"k": None})],
    )
    assert (done.nodes_created, done.edges_created) == (2, 1)
    assert project.delete_edge("x", "y", "r").existed
    assert not project.delete_edge("x", "y", "r").existed
    assert project.delete_node("x").existed


@pytest.mark.parametrize("odd", ODD_IDS)
def test_any_id_is_accepted(project: Store, odd: str) -> None:
    project.inject([{"id": odd, "type": "odd"}])
    assert project.node(odd).node.id == odd
    assert project.delete_node(odd).deleted_id == odd


def test_nodes_are_listed_from_all_pages(project: Store) -> None:
    names = [f"n{number:03}/&=ü" for number in range(25)]
    project.inject([{"id": each, "type": "numbered & odd"} for each in names])
    assert [each.id for each in project.nodes(type="numbered & odd", page_size=10)] == names
    with project.nodes(page_size=7) as nodes:
        assert len(list(nodes)) == 28


def test_a_traversal_extends_the_servers_answer(project: Store) -> None:
    walk = project.traverse("req-1", depth=2)
    assert isinstance(walk, TraverseAnswer)
    assert [(node.id, node.depth) for node in walk.nodes] == [("req-1", 0), ("sym-1", 1), ("sym-2", 2)]
    assert len(walk) == 3
    assert list(walk) == walk.nodes
    assert [node.id for node in project.traverse("req-1", depth=2, min_weight=0.6).nodes] == ["req-1"]
    assert project.traverse("sym-2", direction="incoming", relation_types=["CALLS"], max_nodes=2).count == 2


def test_a_traversal_iterates_over_its_nodes(project: Store) -> None:
    names = [f"leaf-{number}" for number in range(1_200)]
    project.inject(
        [{"id": name, "type": "leaf"} for name in ("trunk", *names)],
        [{"from": "trunk", "to": name, "relation_type": "HAS"} for name in names],
    )
    walk = project.traverse("trunk")
    assert (walk.count, walk.truncated) == (1_201, False)


def test_a_traversal_as_a_networkx_graph(project: Store) -> None:
    graph = project.traverse("req-1", depth=2).to_networkx()
    assert isinstance(graph, nx.MultiDiGraph)
    assert nx.shortest_path(graph, "req-1", "sym-2") == ["req-1", "sym-1", "sym-2"]
    assert graph.nodes["req-1"]["type"] == "requirement"
    assert graph.nodes["req-1"]["attributes"] == {"priority": 1}
    assert graph.edges["req-1", "sym-1", "IMPLEMENTED_BY"]["weight"] == 0.5


def test_a_traversal_through_stores(project: Store, client: Client) -> None:
    law = client.store(f"{project.name}-law")
    law.inject([{"id": "sym-1", "type": "standard"}, {"id": "uri", "type": "standard", "content": "URIs"}])
    ends = [(law.name, "sym-1"), (law.name, "uri"), (law.name, "nobody")]
    project.inject([], [{"from": "req-1", "to": to, "relation_type": "CITES", "to_graph": of} for of, to in ends])
    walk = project.traverse("req-1", follow_symlinks=True)
    graph = walk.to_networkx()
    start = (project.name, "req-1")
    assert {*graph.nodes} == {start, (project.name, "sym-1"), *ends}
    assert {*graph.successors(start)} == {(project.name, "sym-1"), *ends}
    assert graph.edges[start, ends[0], "CITES"]["to_graph"] == law.name
    assert (graph.nodes[ends[2]]["missing"], graph.nodes[ends[1]]["content"]) == (True, "URIs")
    nodes, edges = walk.to_arrow()
    [gone] = [row for row in nodes.to_pylist() if row["missing"]]
    assert (gone["store"], gone["id"], gone["created_at"]) == (law.name, "nobody", None)
    assert {row["to_graph"] for row in edges.to_pylist()} == {None, law.name}
    shown = repr(walk)
    assert "(missing)" in shown
    assert law.name in shown
    lines = list(project.export())
    assert [each.to_graph for each in lines if isinstance(each, EdgeNdjsonLine)].count(law.name) == 3
    copy = client.store(f"{project.name}-copy")
    assert copy.import_(lines).edges_created == len(walk.edges) + 1
    assert copy.links().outbound == project.links().outbound


def test_a_traversal_as_arrow_tables(project: Store) -> None:
    nodes, edges = project.traverse("req-1", depth=2).to_arrow()
    assert nodes.column("id").to_pylist() == ["req-1", "sym-1", "sym-2"]
    assert nodes.column("attributes").to_pylist()[0] == '{"priority":1}'
    assert str(nodes.schema.field("created_at").type) == "timestamp[us, tz=UTC]"
    assert edges.select(["from", "relation_type", "to"]).to_pylist()[1] == {
        "from": "sym-1",
        "relation_type": "CALLS",
        "to": "sym-2",
    }
    empty_nodes, empty_edges = project.traverse("nowhere").to_arrow()
    assert (empty_nodes.schema, empty_edges.schema) == (nodes.schema, edges.schema)
    assert empty_nodes.num_rows == 0


def test_a_terminal_shows_traversals_and_hits_as_lines(project: Store) -> None:
    done = project.inject([{"id": "req-1", "content": "User\nlogin \x1b[31mred " + "x" * 80}])
    assert repr(project.traverse("req-1")).splitlines() == [
        "<Traversal: 2 nodes, 1 edge, sequence 2>",
        "  depth  id     type         content",
        "  0      req-1  requirement  User login ·[31mred " + "x" * 39 + "…",
        "  1      sym-1  code         OAuthHandler",
        "  from   relation_type   to     weight",
        "  req-1  IMPLEMENTED_BY  sym-1  0.5",
    ]
    assert repr(project.traverse("nowhere")) == "<Traversal: 0 nodes, 0 edges, sequence 2>"
    many = project.cypher("UNWIND range(1, 30) AS n RETURN n")
    assert (len(many), list(many)[29]) == (30, [30])
    assert repr(many).splitlines()[-2:] == ["  20", "  … and 10 more"]
    hits = project.search("login", mode="keyword", at_least=done.sequence)
    [hit] = hits
    assert (len(hits), hits.hits) == (1, [hit])
    assert repr(hits).startswith("<Hits: 1 hit, index at sequence 2, degraded: keywords only>\n  score   id     type")
    assert "UNSET" not in repr([hit, *project.traverse("req-1").edges])
    assert repr(hit).startswith("SearchHit(node=Node(id='req-1', type='requirement', content='User")
    batch = project.search_batch(["login", "user"], at_least=done.sequence)
    assert len(batch) == len(list(batch)) == len(batch.to_arrow())
    assert repr(batch).startswith("<BatchHits: ")
    assert "<td>req-1</td>" in batch._repr_html_()
    assert hits.to_arrow().select(["id", "hops"]).to_pylist() == [{"id": "req-1", "hops": None}]


def test_data_frames_report_missing_pandas(project: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    walk = project.traverse("req-1")
    for to_df in (walk.to_df, lambda: walk.to_df("edges"), project.cypher("RETURN 1").to_df):
        with pytest.raises(ImportError, match=r"to_df\(\) requires pandas: pip install 'kgserve\[pandas\]'"):
            to_df()


HOSTILE = "</svg><script>alert('1')</script>\"><img src=x onerror=alert(1)>"


def test_a_notebook_shows_graphs_and_escapes_html(client: Client, store: str) -> None:
    project = client.store(store)
    ends = [{"id": HOSTILE, "type": HOSTILE, "content": HOSTILE}, {"id": "b", "type": "t"}]
    project.inject(ends, [{"from": HOSTILE, "to": "b", "relation_type": HOSTILE}])
    walk = project.traverse(HOSTILE)
    rows = project.cypher("MATCH p = (a)-[r]->(b) RETURN p, [r] AS list, {inner: a} AS map, a.content AS text")
    for shown in (walk._repr_html_(), rows._repr_html_()):
        assert set(re.findall("<([a-z]+)", shown)) == {
            *("p", "table", "thead", "tbody", "tr", "th", "td"),
            *("svg", "g", "title", "path", "polygon", "circle", "text"),
        }
        assert not re.findall(r"<[^>]*(?:on\w+=|href|url\()", shown)
        drawing = ElementTree.fromstring(shown[shown.index("<svg") : shown.index("</svg>") + 6])
        titles = [each.text for each in drawing.iter("{http://www.w3.org/2000/svg}title")]
        assert titles == [HOSTILE, f"{HOSTILE} ({HOSTILE})\n{HOSTILE}", "b (t)"]
    assert f"({HOSTILE}:{HOSTILE})-[:{HOSTILE}]->(b:t)"[:50] in repr(rows)


def test_a_notebook_shows_many_nodes_and_cycles(client: Client, store: str) -> None:
    project = client.store(store)
    nodes = [{"id": f"n{number}", "type": "t"} for number in range(60)]
    edges = [{"from": f"n{number}", "to": f"n{(number + 1) % 60}", "relation_type": "NEXT"} for number in range(60)]
    project.inject(nodes, [*edges, {"from": "n0", "to": "n0", "relation_type": "SELF"}])
    shown = project.cypher("MATCH (a)-[r]->(b) RETURN r, b ORDER BY b.id")._repr_html_()
    assert shown.count("<circle") == 40
    assert "<p>drawn: 40 of 60 nodes" in shown
    assert project.traverse("n0", depth=3)._repr_html_().count("<circle") == 4
    assert "<svg" not in project.cypher("MATCH (a) RETURN a.id")._repr_html_()
    assert "<svg" not in project.traverse("n7", depth=0)._repr_html_()


def test_search(project: Store) -> None:
    sequence = project.inject(NODES).sequence
    found = project.search("login", mode="keyword", at_least=sequence, explain=True)
    assert [hit.node.id for hit in found.hits] == ["req-1"]
    assert found.hits[0].why
    joined = project.search_batch(["login", {"query": "handler"}, SearchQueryVariant(query="token")], limit=2)
    assert (joined.query_count, len(joined.hits)) == (3, 2)
    text = project.context("login", budget=300, format="markdown", types=["requirement"], at_least=sequence)
    assert text.ids == ["req-1"]
    assert text.tokens <= 300
    assert project.reindex().ok


def test_nodes_by_their_attributes(project: Store) -> None:
    nodes = [{"id": f"n{n}", "type": "t", "content": "fox", "attributes": {"n": n}} for n in range(3)]
    seen = project.inject(nodes).sequence
    assert [node.id for node in project.nodes(attributes={"n": 1.0}, page_size=1)] == ["n1"]
    assert [hit.node.id for hit in project.search("fox", attributes={"n": 2}, at_least=seen).hits] == ["n2"]
    assert project.context("fox", attributes={"n": 0}).ids == ["n0"]
    assert project.count(types=["t"], attributes={"n": 1}).count == 1
    found = project.get_nodes(["n2", "x", "n0"])
    assert ([node.id for node in found.nodes], found.missing) == (["n2", "n0"], ["x"])
    dry = project.delete_nodes(attributes={"n": 1}, dry_run=True)
    assert dry.ids == project.delete_nodes(attributes={"n": 1}).ids == ["n1"]
    with pytest.raises(InvalidInput, match="a filter is required"):
        project.delete_nodes(types=[])


def test_memories_by_metadata_as_a_mapping_or_json(project: Store) -> None:
    for number in range(2):
        project.store_memory(f"fact {number}", memory_id=f"m{number}", metadata={"n": number})
    given: list[Mapping[str, Any] | str | None] = [{"n": 1}, '{"n": 1}', None]
    found = [sorted(each.id for each in project.memories(metadata=metadata).memories) for metadata in given]
    assert found == [["m1"], ["m1"], ["m0", "m1"]]
    assert project.count(types="requirement").count == 1, "a text is one item"


def test_invalid_fields_are_named_by_path(project: Store) -> None:
    with pytest.raises(InvalidInput) as caught:
        project.inject([{"id": "a", "type": "t"}, {"id": "b", "tpye": "t"}])
    assert [each.path for each in caught.value.errors] == ["nodes[1].tpye"]
    assert caught.value.__notes__[0].startswith("request: ")
    with pytest.raises(NotFound):
        project.node("nowhere")
    with pytest.raises(InvalidInput, match="JSON"):
        project.inject([{"id": "a", "type": "t", "attributes": {"k": object()}}])
    infinite = EdgeInput(source="a", target="b", relation_type="R", weight=math.inf)
    for write, words in (
        (
            lambda: project.inject([{"id": "a", "type": "t", "attributes": {"k": [0.5, math.nan]}}]),
            r"nodes\[0\].attributes.k\[1\] is nan",
        ),
        (lambda: project.inject([{"id": "a", "type": "t"}], [infinite]), r"edges\[0\].weight is inf"),
        (lambda: project.import_([infinite]), "weight is inf, which is not a finite number"),
    ):
        with pytest.raises(InvalidInput, match=words):
            write()


def test_no_server(tmp_path: Any) -> None:
    with Client("127.0.0.1:9", retries=0) as client, pytest.raises(Unreachable, match="kgserve serve") as caught:
        client.health()
    assert isinstance(caught.value, ConnectionError)
    shown = "".join(traceback.format_exception(caught.value))
    assert len(traceback.extract_tb(caught.value.__traceback__)) <= 6, shown
    assert "httpx" not in shown
    for wrong in ("ftp://x", "http://", "http://a b", "http://h/?q=1"):
        with pytest.raises(InvalidInput, match="address"):
            Client(wrong)


def test_a_server_other_than_kgserve_is_reported(served: RunningServer) -> None:
    with Client(f"{served.url}/docs", retries=0) as client, pytest.raises((NotFound, Refused)):
        client.health()


async def everything(url: str, name: str) -> None:
    async with AsyncClient(url) as client:
        store = client.store(name)
        assert (await client.create(name)).created
        assert (await store.inject(NODES, EDGES)).sequence == 1
        assert isinstance(await store.traverse("req-1", depth=2), Traversal)
        assert [each.id async for each in store.nodes(page_size=2)] == ["req-1", "sym-1", "sym-2"]
        found, stats = await store.node("sym-1"), await store.stats()
        assert (found.node.id, stats.nodes) == ("sym-1", 3)
        async with store.export() as lines:
            kinds = [type(each).__name__ async for each in lines]
        assert kinds == ["NodeNdjsonLine"] * 3 + ["EdgeNdjsonLine"] * 2
        with pytest.raises(InvalidInput):
            await client.drop(name, confirm="")
        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(partial(store.inject, [{"id": f"n{number}", "type": "t"}]))
        assert (await client.drop(name, confirm=name)).ok


def test_operations_of_the_asynchronous_client(served: RunningServer, store: str) -> None:
    anyio.run(everything, served.url, store)


def test_answer_fields_equal_the_servers() -> None:
    for more, answer in ((Traversal, TraverseAnswer), (Hits, SearchAnswer), (BatchHits, BatchSearchAnswer)):
        assert msgspec.structs.fields(more) == msgspec.structs.fields(answer)
