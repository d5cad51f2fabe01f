"""What a write by names comes to, while it is decided: the rows ahead of it under those that it is to write itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kgserve.errors import Conflict
from kgserve.model.batch import EdgePut, NodePut, WriteBatch, node_extras
from kgserve.model.change import Access
from kgserve.model.fields import MAX_ID_BYTES, NodeExtrasPut
from kgserve.model.merging import is_withdrawn
from kgserve.model.names import UNKNOWN, folded, names_of
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
            old.sequence if old else 0,
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

    def drop_edge(self, key: EdgeKey) -> None:
        """Take an edge away."""
        self._edges.pop(key, None)
        self._gone[key] = None

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
