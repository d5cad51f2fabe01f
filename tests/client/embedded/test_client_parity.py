"""The library's methods match the client's: names, documentation, answers and errors."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from operator import methodcaller
from typing import Any

import msgspec
import pytest

from kgserve import client as clients
from kgserve.client import Client
from kgserve.client import embedded as libraries
from kgserve.client.embedded import Library
from kgserve.errors import KgserveError, NotFound
from kgserve.graph.compat.versioned_nodes_api import PutNodeRequest, SubgraphEdgeInput, SubgraphNodeInput
from kgserve.graph.request_bodies import EdgeInput, NodeInput

OF_A_SERVER = {
    "health",
    "ready",
    "openapi",
    "whoami",
    "audit",
    "cluster",
    "drain",
    "finish_upgrade",
    "cypher_words",
    "browser_key",
}
OF_THE_MOMENT = {
    "time",
    "last_accessed_at",
    "took_ms",
    "created_at",
    "updated_at",
    "recorded_from",
    "recorded_to",
    "valid_from",
    "valid_to",
    "at",
    "digest",
    "journal_bytes",
    "engine_bytes",
    "engine_log_bytes",
    "bytes",
    "history",
    "pending",
}
NODES = [
    {"id": "req-1", "type": "requirement", "content": "User login with OAuth", "attributes": {"priority": 1}},
    {"id": "sym-1", "type": "code", "content": "OAuthHandler", "attributes": {"x": [1.5, None, {"y": "ü"}]}},
    {"id": "sym-2", "type": "code", "content": "TokenStore"},
]
EDGES = [
    {"from": "req-1", "to": "sym-1", "relation_type": "IMPLEMENTED_BY", "weight": 0.5},
    {"from": "sym-1", "to": "sym-2", "relation_type": "CALLS"},
]
LINES: list[Any] = [{"kind": "node", "id": "l1", "type": "line"}, {"kind": "edge", "from": "l1"}]

Face = clients.Store | libraries.Store
STEPS: list[Callable[[Any], Any]] = [
    lambda store: store.stats(),
    lambda store: store.settings(),
    lambda store: store.update_settings(name="Shown", kind_whitelist=iter(["requirement", "code"]), history=30),
    lambda store: store.inject(NODES, EDGES),
    lambda store: store.update_settings(conflict_policy="neither"),
    lambda store: store.update_settings(kind_whitelist=[], metadata={"a": 1}, history="all"),
    lambda store: store.inject(NODES, EDGES),
    lambda store: store.inject(NODES, EDGES, touch=False),
    lambda store: store.inject(
        (NodeInput(id=each, type="t") for each in "xy"), [EdgeInput(source="x", target="?", relation_type="r")]
    ),
    lambda store: store.inject([{"id": "", "type": "t"}, {"id": "a", "tpye": "t"}]),
    lambda store: store.inject([{"id": "a"}], [{"from": "a"}]),
    lambda store: store.inject([{"id": "new"}]),
    lambda store: store.inject([{"id": "a", "type": "t", "attributes": {"x": {1, 2}}}]),
    lambda store: store.traverse("req-1", depth=2),
    lambda store: store.traverse("req-1", depth=2, min_weight=0.6, direction="both", max_nodes=1),
    lambda store: store.traverse("nobody"),
    lambda store: store.traverse(""),
    lambda store: store.traverse("req-1", direction="sideways"),
    lambda store: store.node("sym-1"),
    lambda store: store.node("nobody"),
    lambda store: store.node("sym-1", as_of=1),
    lambda store: store.traverse("req-1", as_of=1),
    lambda store: store.node("sym-1", as_of="yesterday"),
    lambda store: store.node("sym-1", version=1),
    lambda store: store.node("sym-1", version=7),
    lambda store: store.node("sym-1", version=1, as_of="1"),
    lambda store: list(store.nodes(page_size=2)),
    lambda store: list(store.nodes(type="code", as_of="1")),
    lambda store: list(store.nodes(type=["code", "requirement"], offset=1, page_size=1, compact=True)),
    lambda store: list(store.nodes(page_size=0)),
    lambda store: store.search("OAuth login", at_least=store.stats().sequence, explain=True),
    lambda store: store.search("OAuth", mode="keyword", types=["code"], at_least=store.stats().sequence),
    lambda store: store.search(""),
    lambda store: store.search("x", at_least=99),
    lambda store: store.memories(metadata={"a": None, "b": 1}).memories,
    lambda store: store.memories(metadata="not JSON"),
    lambda store: store.search_batch(
        ["OAuth", {"query": "token", "mode": "semantic"}], at_least=store.stats().sequence
    ),
    lambda store: store.search_batch([]),
    lambda store: store.context("OAuth", budget=100, at_least=store.stats().sequence),
    lambda store: store.cypher("MATCH (n:Entity {id: $id}) RETURN n, date('2020-01-02') AS day, [1.5]", {"id": "x"}),
    lambda store: store.cypher("RETURN $x", {"x": [1.0, {"y": math.inf}]}),
    lambda store: store.cypher("MATCH (n"),
    lambda store: store.cypher("CREATE (:Entity {id: 'c', type: 't'})"),
    lambda store: store.cypher("CREATE (:Entity {id: 'c', type: 't'})", mode="write"),
    lambda store: store.cypher("MATCH (n) RETURN n.id ORDER BY n.id", max_rows=2),
    lambda store: list(store.cypher_rows("MATCH (n) RETURN n.id, n.type ORDER BY n.id")),
    lambda store: list(store.cypher_rows("RETURN nonsense")),
    lambda store: store.inject([{"id": "req-1", "content": "again"}]),
    lambda store: store.history("req-1"),
    lambda store: store.history("req-1", limit=0),
    lambda store: store.history("nobody"),
    lambda store: store.entity_history("req-1"),
    lambda store: store.entity_history("nobody", limit=1, after_sequence=1),
    lambda store: store.revert("req-1", 1),
    lambda store: store.revert("req-1", 0),
    lambda store: store.changes(since=1, limit=2),
    lambda store: store.changes(limit=0),
    lambda store: store.restore("1", store.name),
    lambda store: store.backup(keep=0),
    lambda store: store.restore("1", f"{store.name}-once"),
    lambda store: store.put_node(
        {"id": "v-1", "kind": "note", "content": "one", "tags": ["topic:a", "b"], "metadata": {"n": 1}}
    ),
    lambda store: store.put_node(PutNodeRequest(lineage_id="v-1", type="note", content="two", based_on_version=1)),
    lambda store: store.update_settings(conflict_policy="manual"),
    lambda store: store.put_node({"id": "v-1", "kind": "note", "content": "three", "based_on_version": 1}),
    lambda store: store.put_node({"id": "v-1", "kind": "note", "content": "four", "based_on_version": 3}),
    lambda store: store.put_node({"id": "v-1", "lineage_id": "v-2"}),
    lambda store: store.put_node({"id": "v-1", "kind": "note", "knid": 1}),
    lambda store: store.put_node({"id": "v-1", "kind": "note", "based_on_version": -1}),
    lambda store: store.put_node({"id": "v-1", "kind": "note", "valid_from": "soon"}),
    lambda store: store.put_node({"id": "v-1", "kind": "note", "metadata": {"n": 1 << 63}}),
    lambda store: store.update_settings(kind_whitelist=["note"]),
    lambda store: store.put_node({"id": "v-2", "kind": "other"}),
    lambda store: store.put_subgraph(
        [{"ref": "a", "lineage_id": "v-2", "kind": "note"}, SubgraphNodeInput(ref="b", kind="other"), {"ref": "c"}],
        (
            {"from_ref": "a", "to_lineage": to, "kind": "cites", "ordinal": ordinal, "metadata": {"to": to}}
            for to, ordinal in (("v-1", 2), ("v-2", 1), ("x", None), ("nobody", None))
        ),
    ),
    lambda store: store.put_subgraph(
        edges=[SubgraphEdgeInput(from_ref="a", from_lineage="v-1", to_ref="b", kind="cites")]
    ),
    lambda store: store.put_subgraph(),
    lambda store: store.put_subgraph([{"kind": "note"}] * 51, [{}] * 101),
    lambda store: store.put_subgraph([{"kind": 1}]),
    lambda store: store.update_settings(conflict_policy="lww", kind_whitelist=[]),
    lambda store: store.node("v-1", version=1),
    lambda store: store.graph(around=["v-1", "nobody"], depth=2, fields=["label", "version", "tags"], lives=True),
    lambda store: store.graph(ids=["v-1", "v-2"], as_of=3, valid_at="any"),
    lambda store: store.graph(overview=2, types=["note"]),
    lambda store: store.graph(),
    lambda store: len(store.timeline().buckets) > 0,
    lambda store: store.timeline(buckets="many"),
    lambda store: store.outgoing("v-2"),
    lambda store: store.outgoing("v-2", limit=2, offset=1),
    lambda store: store.outgoing("v-2", kinds=["cites"], as_of="1"),
    lambda store: store.outgoing("nobody"),
    lambda store: store.outgoing("v-2", limit=0),
    lambda store: store.outgoing("v-2", valid_at="soon"),
    lambda store: store.incoming("v-1", kinds=iter(["cites", "CALLS"]), valid_at="2020-01-01T00:00:00Z"),
    lambda store: store.incoming("v-1", kinds=["none"]),
    lambda store: store.incoming("v-1", follow_symlinks=True),
    lambda store: store.incoming("v-1", offset=-1),
    lambda store: store.edge("v-2~cites~v-1"),
    lambda store: store.edge("v-2~cites~nobody"),
    lambda store: store.edge("no id"),
    lambda store: store.retire_edge("v-2", "v-1", "cites", valid_to="2030-01-01T00:00:00+02:00", created_by="me"),
    lambda store: store.retire_edge("v-2", "v-1", "unknown"),
    lambda store: store.retire_edge("v-2", "v-1", ""),
    lambda store: store.retire("v-2", valid_to="2030-01-01T00:00:00Z"),
    lambda store: store.retire("v-2", valid_to="2030-01-01T00:00:00Z", created_by="somebody else"),
    lambda store: store.retire("v-1"),
    lambda store: store.retire("nobody"),
    lambda store: store.retire("v-2", valid_to="now"),
    lambda store: store.merge("v-2", "v-1", created_by="me"),
    lambda store: store.merge("v-2", "v-1", content="append", attributes="keep"),
    lambda store: store.merge("v-2", "v-2"),
    lambda store: store.merge("v-2", "nobody"),
    lambda store: store.merge("v-1", "v-2", content="all"),
    lambda store: store.node("v-2"),
    lambda store: store.outgoing("v-2"),
    lambda store: store.traverse("v-2"),
    lambda store: store.inject([], [{"from": "v-2", "to": "req-1", "relation_type": "cites"}]),
    lambda store: store.inject([{"id": "v-2", "content": "other"}]),
    lambda store: store.import_([{"kind": "edge", "from": "v-2", "to": "req-1", "relation_type": "says"}]),
    lambda store: store.unmerge("v-2", created_by="me"),
    lambda store: store.unmerge("v-2"),
    lambda store: store.unmerge("nobody"),
    lambda store: store.outgoing("v-2", valid_at="2031-01-01T00:00:00Z"),
    lambda store: store.delete_edge_by_id("v-2~cites~v-1"),
    lambda store: store.delete_edge_by_id("v-2~cites~v-1"),
    lambda store: store.delete_edge_by_id("v-2~cites"),
    lambda store: store.describe_schema(),
    lambda store: store.links(),
    lambda store: store.list_tags(),
    lambda store: store.list_tags("topic:", limit=1),
    lambda store: store.list_tags("z", limit=0),
    lambda store: list(store.nodes(tags=["b"], page_size=1, valid_at="2020-01-01T00:00:00Z")),
    lambda store: list(store.nodes(attributes={"priority": 1.0}, page_size=1)),
    lambda store: list(store.nodes(attributes={"priority": [1]})),
    lambda store: store.count(),
    lambda store: store.count(types=iter(["requirement", "code"]), attributes={"priority": 1}, valid_at="any"),
    lambda store: store.count(attributes={"priority": {}}),
    lambda store: store.get_nodes(iter(["sym-2", "nobody", "req-1"])),
    lambda store: store.get_nodes(["req-1"], as_of=1, valid_at="any"),
    lambda store: store.get_nodes([]),
    lambda store: store.delete_nodes(attributes={"priority": 1}, dry_run=True),
    lambda store: store.delete_nodes(),
    lambda store: store.delete_nodes(ids=["y", "nobody"], types=["t"], limit=2),
    lambda store: store.import_(LINES),
    lambda store: store.import_(b'{"kind":"node","id":"l2","type":"line"}\nnonsense\n'),
    lambda store: store.import_([1]),
    lambda store: list(store.export()),
    lambda store: list(store.export(as_of="1")),
    lambda store: list(store.export(as_of="x")),
    lambda store: taken(store.events(since=0), 6),
    lambda store: taken(store.events(since=0, types=["t"], kinds="node_created"), 2),
    lambda store: taken(store.events(last_event_id="1-1"), 3),
    lambda store: taken(store.events(last_event_id="x"), 1),
    lambda store: taken(store.events(kinds=["surprise"]), 1),
    lambda store: taken(store.events(since=999), 1),
    lambda store: store.delete_edge("sym-1", "sym-2", "CALLS"),
    lambda store: store.delete_node("sym-1"),
    lambda store: store.delete_node("sym-1"),
    lambda store: store.prune_history(3),
    lambda store: store.prune_history("soon"),
    lambda store: store.node("sym-1", as_of="1"),
    lambda store: store.update_settings(memory={"half_life_days": None}),
    lambda store: store.store_memory("prefers tea", memory_id="m1", entity_names=["Ann"], tags=["x"]),
    lambda store: store.store_memory("prefers tea", memory_id="m1"),
    lambda store: store.store_memory(" "),
    lambda store: store.store_memories([{"content": "drinks milk", "id": "m2"}, {"content": "reads", "id": "m3"}]),
    lambda store: store.memory("m1", touch=False),
    lambda store: store.memory("nobody"),
    lambda store: store.update_memory("m2", content="drinks oat milk", based_on_version=1),
    lambda store: store.update_memory("m2", content="x", based_on_version=1),
    lambda store: store.update_memory("m2", parent_id="m1"),
    lambda store: store.update_memory("m1", parent_id="m2"),
    lambda store: store.whole_memory("m2", touch=False),
    lambda store: store.children("m1"),
    lambda store: store.descendants("m1", limit=1, cursor="m2", as_of=1),
    lambda store: store.ancestors("m2", layer=0),
    lambda store: store.memories(types=["observation"], sort="created").memories[0].content,
    lambda store: [hit.id for hit in store.recall("tea", touch=False, at_least=store.stats().sequence).hits],
    lambda store: store.recall("tea", after_date="soon"),
    lambda store: store.retain("Ann drinks tea.", entity_id="home", valid_from="2020-01-01T00:00:00Z"),
    lambda store: store.retain("Ann drinks milk.", supersedes="home", valid_from="2024-01-01T00:00:00Z").operations,
    lambda store: store.retain("Ann drinks oat milk.", entity_id="home", update="correct").operations,
    lambda store: store.retain("Ann", supersedes="nobody"),
    lambda store: [each.content for each in store.memories(valid_at="2021-01-01T00:00:00Z", types=["fact"]).memories],
    lambda store: [(each.id, each.content) for each in store.entity_history("home")],
    lambda store: store.retain([{"role": "user", "content": "Hello"}], source="chat").operations,
    lambda store: store.retain_batch(
        [
            {"content": f"Ann drinks {what}.", "entity_id": "cup", "valid_from": f"{year}-01-01T00:00:00Z"}
            for what, year in (("tea", 2024), ("milk", 2020), ("water", 2025))
        ]
    ),
    lambda store: store.retain_batch([{"content": "fine"}, {"content": "x", "supersedes": "nobody"}]),
    lambda store: store.forget(entity_id="home"),
    lambda store: store.forget(ids=["home"], undo=True),
    lambda store: len(store.forget(ids=["home"], erase=True, dry_run=True).ids),
    lambda store: [each.name for each in store.forget(ids=["home", "nobody"], erase=True).remains],
    lambda store: store.forget(),
    lambda store: store.create_entity("Bob", "person"),
    lambda store: store.create_entities([{"name": "Eve", "entity_type": "person"}]),
    lambda store: store.entities(type=["person"]),
    lambda store: store.entity("ann"),
    lambda store: store.update_entity("bob", description="a friend"),
    lambda store: store.relate("Ann", "Bob", "knows", strength=math.nan),
    lambda store: store.relate("Ann", "Bob", "knows"),
    lambda store: store.create_relations([{"source": "Bob", "target": "Eve", "relation_type": "knows"}]),
    lambda store: store.relations(),
    lambda store: store.entity_graph("Ann", touch=False),
    lambda store: store.entity_memories("Ann"),
    lambda store: store.delete_relation("Ann~knows~Bob"),
    lambda store: store.delete_relations([{"source": "Bob", "target": "Eve", "relation_type": "knows"}]),
    lambda store: store.merge_entities("Eve", "Bob").edges_moved,
    lambda store: store.delete_entity("Bob", dry_run=True),
    lambda store: store.delete_entities(["Bob", "nobody"]),
    lambda store: store.consolidate(dry_run=True).clusters,
    lambda store: store.consolidate(apply=store.consolidate(dry_run=True).plan).clusters,
    lambda store: store.consolidate(apply=0),
    lambda store: store.consolidations(),
    lambda store: store.undo_consolidation("none"),
    lambda store: store.reflect(dry_run=True).looked_at,
    lambda store: store.extract_memories(),
    lambda store: store.prune_memories(dry_run=True).count,
    lambda store: store.memory_stats().memories_by_type,
    lambda store: store.memory_growth(by="month").periods[0].total,
    lambda store: store.memory_types(),
    lambda store: store.memory_tags(),
    lambda store: store.memory_confidence(buckets=2),
    lambda store: store.delete_memory("m3"),
    lambda store: store.delete_memories(),
    lambda store: store.delete_memories(memory_ids=["m1", "m2"]),
    lambda store: store.reindex().sequence,
    lambda store: store.stats().types,
]


def taken(events: Any, count: int) -> list[Any]:
    with events:
        return [next(events) for _ in range(count)]


def shown(kind: type) -> dict[str, Any]:
    own = {name: each for base in reversed(kind.__mro__) for name, each in vars(base).items()}
    return {name: each for name, each in own.items() if not name.startswith("_") and callable(each)}


NOT_COMPARED = {"export_to", "move", "repair"}
"""The library is not a cluster node, so it rejects moves."""
METHODS_WITHOUT_STEP = (
    shown(libraries.Store).keys() - {name for step in STEPS for name in step.__code__.co_names} - NOT_COMPARED
)


def lasting(value: Any) -> Any:
    """Return a value without volatile fields."""
    match value:
        case dict():
            return {key: lasting(each) for key, each in value.items() if key not in OF_THE_MOMENT}
        case list():
            return [lasting(each) for each in value]
        case _:
            return value


def outcome(step: Callable[[Any], Any], store: Face) -> tuple[Any, ...]:
    try:
        answer = step(store)
    except KgserveError as error:
        # The server reports missing resources without their kind; the library names it.
        kind = NotFound if isinstance(error, NotFound) else type(error)
        return kind, str(error), getattr(error, "errors", None)
    return type(answer), lasting(msgspec.to_builtins(answer))


def outcomes(store: Face) -> Iterator[tuple[Any, ...]]:
    for step in (*STEPS, *map(methodcaller, sorted(METHODS_WITHOUT_STEP))):
        yield outcome(step, store)


def test_the_library_has_the_methods_of_the_client() -> None:
    for ours, theirs, more in (
        (libraries.Library, clients.Client, OF_A_SERVER),
        (libraries.Store, clients.Store, set[str]()),
    ):
        one, other = shown(ours), shown(theirs)
        assert one.keys() == other.keys() - more
        for name, method in one.items():
            assert getattr(method, "build", None) is getattr(other[name], "build", None), name
            signatures = [list(inspect.signature(each).parameters.values()) for each in (method, other[name])]
            assert signatures[0] == signatures[1], name
            assert method.__doc__, name


def test_answers_and_errors_equal_the_clients(library: Library, client: Client, store: str) -> None:
    client.create(store)
    library.create(store)
    pairs = zip(outcomes(library.store(store)), outcomes(client.store(store)), strict=True)
    for number, (ours, theirs) in enumerate(pairs):
        # The server has its own messages for errors in a URL's query or in a header.
        whole = not str(theirs[1]).startswith(("query: ", "Last-Event-ID: "))
        assert (ours if whole else ours[:1]) == (theirs if whole else theirs[:1]), f"step {number}"


def test_every_method_with_required_arguments_is_covered() -> None:
    methods = shown(libraries.Store)
    for name in METHODS_WITHOUT_STEP:
        _, *parameters = inspect.signature(methods[name]).parameters.values()
        assert all(each.default is not each.empty for each in parameters), name


@pytest.mark.parametrize("name", ["", "a/b", "nobody"])
def test_invalid_store_names_are_rejected_alike(library: Library, client: Client, name: str) -> None:
    for step in (
        lambda store: store.stats(),
        lambda store: store.node("a"),
        lambda store: store.delete_node("a"),
        lambda store: taken(store.events(), 1),
    ):
        if name:  # with an empty name, the server sees another path
            assert outcome(step, library.store(name)) == outcome(step, client.store(name))
        else:
            assert issubclass(outcome(step, library.store(name))[0], KgserveError)


def test_the_life_of_a_store(library: Library, client: Client, store: str) -> None:
    for face in (library, client):
        assert face.create(store).created
        assert not face.create(store).created
        assert store in [each.name for each in face.stores().stores]
        with pytest.raises(KgserveError, match=f"must repeat the store's name: .confirm={store}"):
            face.drop(store, confirm="another")
        assert face.drop(store, confirm=store).dropped == store
