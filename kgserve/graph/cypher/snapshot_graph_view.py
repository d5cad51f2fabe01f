"""Graph view of a store's rows for the interpreter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, cast

from typing_extensions import override

from kgserve.cypher.interpreter.graph_view_interface import (
    NO_LABEL,
    RelationshipDifference,
    RelationshipKey,
    StatementGraphView,
    StatementNodeDifference,
)
from kgserve.cypher.interpreter.marker_labels import find_marker_labels_in_attributes, is_marker_label
from kgserve.errors import Gone, InvalidInput, Unavailable
from kgserve.graph.cypher import row_properties
from kgserve.graph.cypher.row_properties import NODE_MEMORY_PROPERTIES, NODE_PROPERTY_NAMES, Attributes
from kgserve.platform.codecs import decode_json
from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.projections.catalog.node_catalog import NodeCatalog
from kgserve.projections.cypher_engine.engine.protocol import ChangedRow
from kgserve.storage.journal.journal_reader import JournalReader
from kgserve.storage.model.attribute_filters import build_attribute_filter_conditions
from kgserve.storage.model.change_set import ChangeSet
from kgserve.storage.model.node_and_memory_filters import NodeFilter
from kgserve.storage.model.node_edge_fields import AUTHOR_FIELD, EDGE, NODE, TIMESTAMP_TYPE, RowFieldGroups
from kgserve.storage.model.node_edge_rows import EdgeRow, NodeRow
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.stores.open_store import OpenStore

MAX_CACHED_ROWS = 50_000
"""Decoded rows kept for one statement; beyond that, all are forgotten."""
MAX_COMMITS_BEHIND = 1_000
"""Commits after the snapshot up to which an index of current rows is used."""
MIN_INDEX_SELECTIVITY = 4
"""An index is used if at most one in this many nodes matches."""
MAX_LISTED_KEYS = 10_000
MAX_SAMPLED_NODES = 5_000
MAX_SAMPLED_NODES_PER_LABEL = 200
MAX_SAMPLED_EDGES_PER_NODE = 10
"""Nodes and relationships that names of properties are read from."""
MAX_RECORDED_READS = 200_000
"""Reads recorded one by one; beyond that, any change of another commit is a conflict."""
_EVERYTHING = 1 << 60
_FIRST_BATCH_NODES = 16
_BATCH_NODES = 1_000
"""Nodes of an index that are read at once; few at first, for statements with a limit."""


class StoreIndexes:
    """Indexes of a store's current rows, by which a statement on a snapshot finds candidates and counts nodes."""

    def __init__(self, store: OpenStore, rows: RowsSnapshot) -> None:
        self._store = store
        self._rows = rows

    def candidates(self, wanted: NodeFilter) -> list[str] | None:
        """Return ids of nodes that include all matching ones of the snapshot.

        Returns None if most nodes match, or if the index is unavailable or too far ahead.
        """

        def ask(catalog: NodeCatalog, rows: RowsSnapshot) -> tuple[list[str] | None, int]:
            counts = catalog.count_by_attribute(wanted.attributes)
            if wanted.types:
                counts.append(catalog.count(NodeFilter(types=wanted.types)).count)
            count = min(counts)
            if count * MIN_INDEX_SELECTIVITY > max(rows.state.nodes, MAX_COMMITS_BEHIND):
                return None, rows.at
            return catalog.find_matching_ids(wanted, _EVERYTHING), rows.at

        try:
            found, at = self._store.query_catalog(ask, by_attributes=bool(wanted.attributes))
        except Unavailable:
            return None
        if found is None or at == self._rows.at:
            return found
        changed = self._changed_since(at)
        return None if changed is None else [*{*found, *changed}]

    def count(self, label: str) -> int:
        """Return the number of current nodes with a label."""
        try:
            return self._store.query_catalog(lambda catalog, _: catalog.count(NodeFilter(types=(label,))).count)
        except Unavailable:
            return self._rows.state.nodes

    def sample(self, label: str, count: int) -> list[str] | None:
        """Return ids of some nodes that have a label now, and perhaps had another in the snapshot."""
        try:
            return self._store.query_catalog(
                lambda catalog, _: catalog.find_matching_ids(NodeFilter(types=(label,)), count)
            )
        except Unavailable:
            return None

    def labels(self) -> list[str]:
        """Return the labels of current nodes."""
        return sorted(self._store.query_catalog(lambda catalog, _: catalog.types(MAX_LISTED_KEYS)))

    def relationship_types(self) -> list[str]:
        """Return the types of current relationships."""
        return sorted(self._store.query_catalog(lambda catalog, _: catalog.relation_types(MAX_LISTED_KEYS)))

    def _changed_since(self, last: int) -> set[str] | None:
        """Return the nodes that commits after the snapshot have changed; None for too many commits."""
        first = self._rows.at + 1
        if last - first > MAX_COMMITS_BEHIND:
            return None
        try:
            changes = [*JournalReader(self._store.layout.journal).read(first, last)]
        except Gone:  # the journal was truncated meanwhile
            return None
        rows = (row for change in changes for row in (*change.nodes_updated, *change.nodes_deleted))
        return {row if isinstance(row, str) else row.id for row in rows}


class StatementReadSet:
    """Nodes and relationships that a statement has read, to find conflicts with other commits."""

    def __init__(self) -> None:
        self._has_scanned = False
        self._nodes: set[str] = set()
        self._expanded: set[str] = set()
        self._edges: set[RelationshipKey] = set()

    def add_scan(self) -> None:
        """Note that any node may have been read."""
        self._has_scanned = True

    def add_node(self, node_id: str) -> None:
        """Note that a node was looked up."""
        self._nodes.add(node_id)

    def add_edge(self, key: RelationshipKey) -> None:
        """Note that a relationship was looked up."""
        self._edges.add(key)

    def add_expansion(self, node_id: str) -> None:
        """Note that the relationships of a node were read."""
        self._expanded.add(node_id)
        if len(self._expanded) + len(self._nodes) > MAX_RECORDED_READS:
            self._has_scanned = True

    def overlaps(self, changes: Iterable[ChangeSet]) -> bool:
        """Return whether commits have changed anything that was read."""
        for change in changes:
            created = (row.id for row in change.nodes_created)
            nodes = {*created, *(row.id for row in change.nodes_updated), *change.nodes_deleted}
            edges = {*change.edge_keys()}
            if self._has_scanned and (nodes or edges):
                return True
            ends = {end for key in edges for end in key[:2]}
            if nodes & self._nodes or edges & self._edges or ends & self._expanded:
                return True
        return False


class SnapshotGraphView(StatementGraphView):
    """Graph of one snapshot. Not thread-safe. ``reads`` records what was read."""

    def __init__(self, rows: RowsSnapshot, indexes: StoreIndexes | None = None) -> None:
        self.reads = StatementReadSet()
        self._rows = rows
        self._indexes = indexes
        self._nodes: dict[str, NodeRow | None] = {}
        self._edges: dict[RelationshipKey, EdgeRow | None] = {}
        self._node_attributes: dict[str, Attributes] = {}
        self._edge_attributes: dict[RelationshipKey, Attributes] = {}

    def node_row(self, node_id: str) -> NodeRow | None:
        """Return the row of a node; None if it does not exist."""
        try:
            return self._nodes[node_id]
        except KeyError:
            self.reads.add_node(node_id)
            return self._remember(self._nodes, node_id, self._rows.node(node_id))

    def edge_row(self, key: RelationshipKey) -> EdgeRow | None:
        """Return the row of a relationship; None if it does not exist."""
        try:
            return self._edges[key]
        except KeyError:
            self.reads.add_edge(key)
            return self._remember(self._edges, key, self._rows.edge(key))

    @override
    def node_ids(self) -> Iterator[str]:
        return (row.id for row in self._scan())

    @override
    def node_ids_by_label(self, label: str) -> Iterator[str]:
        self.reads.add_scan()
        found = None if self._indexes is None else self._indexes.candidates(NodeFilter(types=(label,)))
        if found is None:
            return (row.id for row in self._scan() if row.type == label)
        return (row.id for row in self._load(found) if row.type == label)

    @override
    def node_ids_by_property(self, label: str | None, name: str, value: Any) -> Iterable[str] | None:
        is_column = name in NODE_PROPERTY_NAMES and name not in NODE_MEMORY_PROPERTIES
        if self._indexes is None or is_column or not isinstance(value, str | int | float | bool):
            return None
        self.reads.add_scan()
        types = () if label is None else (label,)
        found = self._indexes.candidates(
            NodeFilter(types=types, attributes=build_attribute_filter_conditions({name: value}))
        )
        if found is not None and name in NODE_MEMORY_PROPERTIES:
            memories = self._ids_of_memories()
            found = None if memories is None else [*{*found, *memories}]
        if found is not None and value is True and is_marker_label(name):
            # Other interfaces may have stored it as a type.
            found = [*{*found, *self.node_ids_by_label(name)}]
        return None if found is None else (row.id for row in self._load(found))

    def _ids_of_memories(self) -> list[str] | None:
        """Return the ids of memories and named nodes; None if most nodes are such."""
        numbers = [number for batch in self._rows.memory_and_named_nodes() for number in batch.tolist()]
        if len(numbers) * MIN_INDEX_SELECTIVITY > max(self._rows.state.nodes, MAX_COMMITS_BEHIND):
            return None
        return self._rows.delta.ids(numbers)

    @override
    def has_node(self, node_id: str) -> bool:
        return self.node_row(node_id) is not None

    @override
    def node_label(self, node_id: str) -> str | None:
        row = self.node_row(node_id)
        return None if row is None else row.type

    @override
    def node_markers(self, node_id: str) -> list[str]:
        row = self._existing_node(node_id)
        return find_marker_labels_in_attributes(self._attributes_of_node(row)) if '"__' in row.attributes else []

    @override
    def node_property(self, node_id: str, name: str) -> Any:
        row = self._nodes.get(node_id) or self._existing_node(node_id)
        attributes = self._node_attributes.get(node_id)
        if attributes is None:
            attributes = self._attributes_of_node(row)
        if name not in NODE_PROPERTY_NAMES or (row.extras is None and name in NODE_MEMORY_PROPERTIES):
            value = attributes.get(name)
            return True if value is None and name == row.type and is_marker_label(name) else value
        return row_properties.read_node_property(row, attributes, name)

    @override
    def node_properties(self, node_id: str) -> dict[str, Any]:
        row = self._existing_node(node_id)
        return row_properties.get_node_property_map(row, self._attributes_of_node(row))

    @override
    def unset_node_property(self, node_id: str, name: str, *, is_new: bool) -> Any:
        return row_properties.read_implicit_node_property(None if is_new else self.node_row(node_id), name)

    @override
    def convert_node_property(self, node_id: str, name: str, value: Any, *, is_new: bool) -> Any:
        row = None if is_new else self.node_row(node_id)
        attributes = {} if row is None else self._attributes_of_node(row)
        return row_properties.convert_node_property_value(row, attributes, node_id, name, value)

    @override
    def node_columns(self, node_id: str) -> dict[str, Any]:
        row = self._existing_node(node_id)
        return {"_label": "Entity"} | _columns(row, NODE)

    @override
    def changed_node_columns(self, change: StatementNodeDifference) -> dict[str, Any]:
        row = None if change.label_before is None else self._existing_node(change.id)
        return {"_label": "Entity"} | _changed_columns(row_properties.build_node_properties_change(row, change), NODE)

    @override
    def relationships(
        self, node_id: str, *, is_outgoing: bool, types: tuple[str, ...] = ()
    ) -> Iterable[RelationshipKey]:
        self.reads.add_expansion(node_id)
        rows = self._rows
        number = rows.number(node_id)
        if number < 0:
            return ()
        found = rows.edges_of(number, outgoing=is_outgoing)
        names, relations = rows.base.names, rows.base.relations
        named = [names[relations[edge]] for edge in found.numbers]
        ends: Sequence[int] = found.ends
        if types:
            ends = [end for end, type_ in zip(ends, named, strict=True) if type_ in types]
            named = [type_ for type_ in named if type_ in types]
        others = zip(rows.delta.ids(ends), named, strict=True)
        if is_outgoing:
            keys = [(node_id, other, type_) for other, type_ in others]
        else:
            keys = [(other, node_id, type_) for other, type_ in others]
        changed = (cast("EdgeRow", version.row).key for _, _, version in found.changed)
        keys += [key for key in changed if not types or key[2] in types]
        return keys

    @override
    def count_relationships(self, node_id: str, *, is_outgoing: bool, types: tuple[str, ...] = ()) -> int:
        self.reads.add_expansion(node_id)
        rows = self._rows
        number = rows.number(node_id)
        if number < 0:
            return 0
        found = rows.edges_of(number, outgoing=is_outgoing)
        if not types:
            return len(found.numbers) + len(found.changed)
        names, relations = rows.base.names, rows.base.relations
        count = sum(1 for edge in found.numbers if names[relations[edge]] in types)
        return count + sum(1 for _, _, version in found.changed if cast("EdgeRow", version.row).key[2] in types)

    @override
    def has_relationship(self, key: RelationshipKey) -> bool:
        return self.edge_row(key) is not None

    @override
    def relationship_property(self, key: RelationshipKey, name: str) -> Any:
        row = self._existing_edge(key)
        return row_properties.read_edge_property(row, self._attributes_of_edge(row), name)

    @override
    def relationship_properties(self, key: RelationshipKey) -> dict[str, Any]:
        row = self._existing_edge(key)
        return row_properties.get_edge_property_map(row, self._attributes_of_edge(row))

    @override
    def unset_relationship_property(self, key: RelationshipKey, name: str, *, is_new: bool) -> Any:
        return row_properties.read_implicit_edge_property(None if is_new else self.edge_row(key), key, name)

    @override
    def convert_relationship_property(self, key: RelationshipKey, name: str, value: Any, *, is_new: bool) -> Any:
        row = None if is_new else self.edge_row(key)
        attributes = {} if row is None else self._attributes_of_edge(row)
        return row_properties.convert_edge_property_value(row, attributes, key, name, value)

    @override
    def relationship_columns(self, key: RelationshipKey) -> dict[str, Any]:
        return _name_edge_ends(_columns(self._existing_edge(key), EDGE))

    @override
    def changed_relationship_columns(self, change: RelationshipDifference) -> dict[str, Any]:
        row = self.changed_edge_row(change)
        columns = _changed_columns(row_properties.build_relationship_properties_change(row, change), EDGE)
        if row is not None:
            columns["attributes"] = row_properties.keep_edge_times(row, columns["attributes"])
        return _name_edge_ends(columns)

    def changed_edge_row(self, change: RelationshipDifference) -> EdgeRow | None:
        """Return the row that a statement changes; None if it creates the relationship."""
        is_new = change.properties_before is None or change.is_replaced
        return None if is_new else self._existing_edge(change.key)

    @override
    def node_count(self, label: str | None = None) -> int:
        if label is None or self._indexes is None:
            return self._rows.state.nodes
        return self._indexes.count(label)

    @override
    def labels(self) -> list[str]:
        found = {row.type for row in self._scan()} if self._indexes is None else self._indexes.labels()
        return sorted({*found} - {NO_LABEL})

    @override
    def relationship_types(self) -> list[str]:
        return sorted(self._rows.relation_counts()) if self._indexes is None else self._indexes.relationship_types()

    @override
    def property_keys(self) -> list[str]:
        types = {*self.labels(), NO_LABEL}
        keys: set[str] = set()
        per_type = max(1, min(MAX_SAMPLED_NODES_PER_LABEL, MAX_SAMPLED_NODES // len(types)))
        for type_ in islice(sorted(types), MAX_SAMPLED_NODES):
            for node_id in self.sample_nodes(type_, per_type):
                keys.update(self._attributes_of_node(self._existing_node(node_id)))
                for key in islice(self.relationships(node_id, is_outgoing=True), MAX_SAMPLED_EDGES_PER_NODE):
                    keys.update(self._attributes_of_edge(self._existing_edge(key)))
            if len(keys) > MAX_LISTED_KEYS:
                break
        return sorted(name for name in keys if not is_marker_label(name))

    @override
    def sample_nodes(self, label: str, count: int) -> list[str]:
        found = None if self._indexes is None else self._indexes.sample(label, count)
        if found is None:
            return super().sample_nodes(label, count)
        return [row.id for row in self._load(found) if row.type == label]

    def _scan(self) -> Iterator[NodeRow]:
        self.reads.add_scan()
        for batch in self._rows.node_rows():
            if len(self._nodes) + len(batch) > MAX_CACHED_ROWS:
                self._nodes.clear()
                self._node_attributes.clear()
            self._nodes.update((row.id, row) for row in batch)
            yield from batch

    def _load(self, ids: Sequence[str]) -> Iterator[NodeRow]:
        """Yield the existing nodes among ids, read in batches."""
        size = _FIRST_BATCH_NODES
        start = 0
        while start < len(ids):
            rows = self._rows.nodes(ids[start : start + size])
            if len(self._nodes) + len(rows) > MAX_CACHED_ROWS:
                self._nodes.clear()
                self._node_attributes.clear()
            self._nodes.update(rows)
            yield from rows.values()
            start, size = start + size, _BATCH_NODES

    def _existing_node(self, node_id: str) -> NodeRow:
        row = self.node_row(node_id)
        if row is None:
            raise InvalidInput.at("query", f"node {node_id!r} does not exist")
        return row

    def _existing_edge(self, key: RelationshipKey) -> EdgeRow:
        row = self.edge_row(key)
        if row is None:
            raise InvalidInput.at("query", f"the relationship {key[2]!r} from {key[0]!r} to {key[1]!r} does not exist")
        return row

    def _attributes_of_node(self, row: NodeRow) -> Attributes:
        found = self._node_attributes.get(row.id)
        if found is None:
            decoded = row_properties.decode_node_attributes(row)
            found = self._remember(self._node_attributes, row.id, decoded)
        return found

    def _attributes_of_edge(self, row: EdgeRow) -> Attributes:
        found = self._edge_attributes.get(row.key)
        if found is None:
            decoded = row_properties.decode_edge_attributes(row)
            found = self._remember(self._edge_attributes, row.key, decoded)
        return found

    @staticmethod
    def _remember(cache: dict[Any, Any], key: Any, value: Any) -> Any:
        if len(cache) >= MAX_CACHED_ROWS:
            cache.clear()
        cache[key] = value
        return value


def _columns(row: NodeRow | EdgeRow, fields: RowFieldGroups) -> dict[str, Any]:
    """Return the columns of every row, and those extras that are set; times as text."""
    plain = {field.name: getattr(row, field.name) for field in fields.plain}
    extras = {} if row.extras is None else {field.name: getattr(row.extras, field.name) for field in fields.optional}
    return _format_columns(plain | extras, fields)


def _changed_columns(change: ChangedRow, fields: RowFieldGroups) -> dict[str, Any]:
    """Return the columns of a new or changed row; those that kgserve manages are the ones before the statement."""
    tags = change.now.get("tags")
    shown = {**change.now, "tags": decode_json(tags, list[str])} if isinstance(tags, str) else change.now
    # A statement names no author.
    return _format_columns({name: value for name, value in shown.items() if name != AUTHOR_FIELD}, fields)


def _format_columns(values: dict[str, Any], fields: RowFieldGroups) -> dict[str, Any]:
    times = {field.name for field in fields.whole if field.type is TIMESTAMP_TYPE}
    plain = {field.name for field in fields.plain}
    return {
        name: format_rfc3339_timestamp(value) if name in times else value
        for name, value in values.items()
        if value is not None and (name in plain or value not in ("", ()))
    }


def _name_edge_ends(columns: dict[str, Any]) -> dict[str, Any]:
    return {"_label": "RELATES_TO", "_from": columns.pop("source"), "_to": columns.pop("target")} | columns


def open_snapshot_graph_view(store: OpenStore, rows: RowsSnapshot) -> SnapshotGraphView:
    """Return the graph of a snapshot of an open store, with its indexes."""
    return SnapshotGraphView(rows, StoreIndexes(store, rows))
