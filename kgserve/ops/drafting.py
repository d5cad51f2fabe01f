"""What a write by names comes to, while it is decided: the rows ahead of it under those that it is to write itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kgserve.errors import Conflict
from kgserve.model.batch import EdgePut, NodePut, WriteBatch, edge_again, node_extras
from kgserve.model.change import Access
from kgserve.model.fields import MAX_ID_BYTES, NodeExtrasPut
from kgserve.model.merging import is_withdrawn
from kgserve.model.names import IS_ABOUT, UNKNOWN, folded, names_of
from kgserve.model.rows import EMPTY_OBJECT, EdgeKey, EdgeRow, NodeRow
from kgserve.ops.made_calls import new_id
from kgserve.ops.writing import cost
from kgserve.store.ahead import Ahead

_NAMED = 10
"""So many candidates are told of."""


class Draft:
    """Nodes and edges to write, each once, with what is looked up on the way. For the writing thread."""

    def __init__(self, ahead: Ahead) -> None:
        self.ahead = ahead
        self.accesses: dict[str, Access] = {}
        self.made: list[str] = []
        self._nodes: dict[str, NodePut] = {}
        self._rows: dict[str, NodeRow] = {}
        self._edges: dict[EdgeKey, EdgePut] = {}
        self._gone: dict[EdgeKey, None] = {}
        self._edges_at: dict[str, dict[EdgeKey, None]] = {}
        # As they are ahead of the draft, which does not change while it is made.
        self._there_from: dict[str, dict[EdgeKey, EdgePut]] = {}
        self._there_to: dict[tuple[str, str], dict[EdgeKey, None]] = {}
        self._by_name: dict[str, list[str]] = {}

    def batch(self) -> WriteBatch:
        """The write."""
        nodes, edges = [*self._nodes.values()], [*self._edges.values()]
        return WriteBatch(
            nodes=nodes,
            edges=edges,
            delete_edges=[*self._gone],
            accesses=[*self.accesses.values()],
            touch=False,
            cost=cost(nodes, edges),
        )

    def node(self, node_id: str) -> NodeRow | None:
        """A node as it will be."""
        return self._rows.get(node_id) or self.ahead.node(node_id)

    def edge(self, key: EdgeKey) -> EdgePut | EdgeRow | None:
        """An edge as it will be, or as it is to be put."""
        return self._edges.get(key) or (None if key in self._gone else self.ahead.edges((key,)).get(key))

    def edges_from(self, node_id: str) -> list[EdgePut]:
        """The edges that will lead from a node, each as a put that makes it again."""
        if (known := self._there_from.get(node_id)) is None:
            known = {edge.key: edge_again(edge, edge.key) for edge in self.ahead.edges_from(node_id)}
            self._there_from[node_id] = known
        there = known.copy()
        for key in self._edges_at.get(node_id, ()):
            if key[0] == node_id:
                earlier, put = there.pop(key, None), self._edges.get(key)
                if put is not None:
                    there[key] = put if earlier is None or key in self._gone else put.over(earlier)
        return [*there.values()]

    def sources(self, node_id: str, kind: str) -> list[str]:
        """The nodes from which edges of a kind will lead to a node."""
        if (there := self._there_to.get((node_id, kind))) is None:
            there = dict.fromkeys(edge.key for edge in self.ahead.edges_to(node_id, kind))
            self._there_to[node_id, kind] = there
        mine = dict.fromkeys(key for key in self._edges_at.get(node_id, ()) if key[1:] == (node_id, kind))
        return [key[0] for key in there | mine if key in self._edges or (key in there and key not in self._gone)]

    def about(self, memory: str) -> dict[str, float]:
        """The entities that a memory will be about, with how much."""
        found = (put for put in self.edges_from(memory) if put.key[2] == IS_ABOUT)
        return {put.key[1]: 1.0 if put.weight is None else put.weight for put in found}

    def put_node(self, put: NodePut) -> NodeRow:
        """Write a node, or more of it; its row then, but for what the store keeps itself."""
        old, earlier = self.node(put.id), self._nodes.get(put.id)
        self._nodes[put.id] = put if earlier is None else put.over(earlier)
        created = self.ahead.now if old is None else old.created_at
        row = self._rows[put.id] = NodeRow(
            put.id,
            put.type or (old.type if old else ""),
            (old.content if old else "") if put.content is None else put.content,
            (old.attributes if old else EMPTY_OBJECT) if put.attributes is None else put.attributes,
            old.version if old else 1,
            self.ahead.sequence,
            created if put.created_at is None else put.created_at,
            self.ahead.now,
            node_extras(put.extras, old.extras if old else None),
        )
        for name in names_of(row):
            self._by_name.setdefault(folded(name), []).append(row.id)
        return row

    def put_edge(self, put: EdgePut) -> None:
        """Write an edge, or more of it."""
        earlier = self._edges.get(put.key)
        self._edges[put.key] = put if earlier is None else put.over(earlier)
        self._note(put.key)

    def drop_edge(self, key: EdgeKey) -> None:
        """Take an edge away."""
        self._edges.pop(key, None)
        self._gone[key] = None
        self._note(key)

    def _note(self, key: EdgeKey) -> None:
        for end in key[:2]:
            self._edges_at.setdefault(end, {})[key] = None

    # Named entities

    def entity(self, name: str, entity_type: str = UNKNOWN) -> str:
        """The id of the entity that is called so; it is made if there is none. Raises Conflict where several are.

        One whose type nobody knows is given the type. Of one type there is one entity of a name, in any spelling.
        """
        found = self.find(name)
        if entity_type == UNKNOWN:
            return self._only(name, found).id if found else self._new(name, UNKNOWN)
        same = [row for row in found if row.type == entity_type]
        if same:
            return self._only(name, same).id
        unknown = [row for row in found if row.type == UNKNOWN]
        if unknown:
            return self.put_node(NodePut(0, unknown[0].id, entity_type)).id
        return self._new(name, entity_type)

    def met(self, name: str) -> str | None:
        """As `entity`, of one that is there; None where none is."""
        found = self.find(name)
        return self._only(name, found).id if found else None

    def find(self, name: str) -> list[NodeRow]:
        """The entities called so: by that very name, else another spelling, an alias, or their id."""
        wanted = folded(name)
        ids = dict.fromkeys(row.id for row in self.ahead.named(name)) | dict.fromkeys(self._by_name.get(wanted, ()))
        # One that was merged has its name still, and means the one that took its place.
        rows = [row for node_id in ids if (row := self.node(node_id)) is not None]
        tests: tuple[Callable[[NodeRow], bool], ...] = (
            lambda row: _name(row) == name,
            lambda row: folded(_name(row)) == wanted,
            lambda row: wanted in map(folded, names_of(row)),
        )
        for fits in tests:
            if found := self.there(row.id for row in rows if fits(row)):
                return found
        return self.there((name,))

    def there(self, ids: Iterable[str]) -> list[NodeRow]:
        """Those of some nodes that are entities, each where merges have brought it to."""
        survivors = dict.fromkeys(map(self.ahead.survivor, ids))
        rows = (row for node_id in survivors if (row := self.node(node_id)) is not None)
        return [row for row in rows if not row.is_memory and not is_withdrawn(row.extras)]

    def _only(self, name: str, found: list[NodeRow]) -> NodeRow:
        known = [row for row in found if row.type != UNKNOWN] or found
        if len(known) > 1:
            some = ", ".join(f"{row.id!r} ({row.type})" for row in known[:_NAMED])
            raise Conflict(f"{name!r} names {len(known)} entities: {some}; use an id, or say the type that is meant")
        return known[0]

    def _new(self, name: str, entity_type: str) -> str:
        self.made.append(node_id := self._free_id(name, entity_type))
        self.put_node(NodePut(0, node_id, entity_type, "", EMPTY_OBJECT, extras=NodeExtrasPut(name=name)))
        return node_id

    def _free_id(self, name: str, entity_type: str) -> str:
        for node_id in (name, f"{name} ({entity_type})"):
            if len(node_id.encode()) <= MAX_ID_BYTES and self.node(node_id) is None:
                return node_id
        return new_id(len(self.made))


def _name(row: NodeRow) -> str:
    return "" if row.extras is None else row.extras.name
