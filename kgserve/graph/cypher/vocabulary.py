"""Words that Cypher statements of a store use: labels, relationship types and attributes, from a sample of its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from kgserve.cypher.completion import (
    COMPLETION_FUNCTIONS,
    COMPLETION_KEYWORDS,
    COMPLETION_PROCEDURES,
    NODE_LABELS,
    RELATION_LABELS,
    quote_cypher_identifier,
)
from kgserve.cypher.interpreter.graph_view_interface import NO_LABEL
from kgserve.graph.answers import StoreCypherVocabulary
from kgserve.graph.cypher.row_properties import decode_edge_attributes, decode_node_attributes
from kgserve.graph.store_handle import StoreHandle
from kgserve.projections.catalog.node_catalog import NodeCatalog
from kgserve.storage.model.node_and_memory_filters import NodeFilter
from kgserve.storage.model.node_edge_rows import EdgeRow, NodeRow
from kgserve.storage.rows.rows_snapshot import RowsSnapshot

MAX_LISTED_NAMES = 1_000
"""Labels listed, and relationship types, and attributes of one of them."""
MAX_SAMPLED_ROWS_PER_TYPE = 200
MAX_SAMPLED_ROWS = 5_000
"""Nodes whose attributes are read, and relationships whose attributes are read."""
MAX_SAMPLED_EDGES_PER_NODE = 10
_EXAMPLE_LABELS = 3
_EXAMPLE_NODES_PER_LABEL = 20
_MAX_EXAMPLE_CHARS = 300


class AttributeCounts:
    """Numbers of sampled rows by type and attribute."""

    def __init__(self, types: Iterable[str]) -> None:
        self._counts: dict[str, Counter[str]] = {each: Counter() for each in types}
        self._rows: Counter[str] = Counter()

    def wants(self, type_: str) -> bool:
        """Return whether another row of a type should be sampled."""
        return (
            type_ in self._counts
            and self._rows[type_] < MAX_SAMPLED_ROWS_PER_TYPE
            and self._rows.total() < MAX_SAMPLED_ROWS
        )

    def add(self, type_: str, attributes: Iterable[str]) -> None:
        """Count the attributes of one row."""
        self._rows[type_] += 1
        self._counts[type_].update(attributes)

    def by_frequency(self) -> dict[str, list[str]]:
        """Return the attributes of each type, most frequent first."""
        return {type_: _most_frequent(counts)[:MAX_LISTED_NAMES] for type_, counts in self._counts.items()}


def _most_frequent(counts: Counter[str]) -> list[str]:
    return sorted(counts, key=lambda name: (-counts[name], name))


def list_cypher_completion_words(graph: StoreHandle) -> StoreCypherVocabulary:
    """Return words for the completion of statements: those of every store, and the names that this store uses.

    Labels and relationship types come most frequent first, each with attributes of up to 200 of its nodes or
    relationships, and of 5,000 in all. Rare attributes may be missing.

    Raises NotFound.
    """
    with graph.lease() as store:
        found = store.query_catalog(lambda catalog, _: _list_names(catalog, MAX_LISTED_NAMES))
        nodes, edges = AttributeCounts(found.labels), AttributeCounts(found.relation_types)
        with store.reading() as rows:
            for row in _sample_nodes(rows, found):
                if nodes.wants(row.type):
                    nodes.add(row.type, [*decode_node_attributes(row)])
                for edge in _sample_edges(rows, row, edges):
                    edges.add(edge.relation_type, [*decode_edge_attributes(edge)])
    attributes_by_label = nodes.by_frequency()
    attributes_by_label.pop(NO_LABEL, None)
    return StoreCypherVocabulary(
        keywords=[*COMPLETION_KEYWORDS],
        functions=[*COMPLETION_FUNCTIONS],
        procedures=[*COMPLETION_PROCEDURES],
        labels=attributes_by_label,
        relation_types=edges.by_frequency(),
        node_properties=[*NODE_LABELS["Entity"]],
        relation_properties=[*RELATION_LABELS["RELATES_TO"]],
    )


class _StoreNames(NamedTuple):
    """Frequent labels and types of a store, and ids of some nodes of each label."""

    labels: list[str]
    relation_types: list[str]
    node_ids: list[str]


def _list_names(
    catalog: NodeCatalog, most_labels: int, nodes_per_label: int = MAX_SAMPLED_ROWS_PER_TYPE
) -> _StoreNames:
    labels = [*catalog.types(most_labels)]
    per_label = max(1, min(nodes_per_label, MAX_SAMPLED_ROWS // max(1, len(labels))))
    ids = (catalog.find_matching_ids(NodeFilter(types=(label,)), per_label) for label in labels)
    return _StoreNames(labels, [*catalog.relation_types(MAX_LISTED_NAMES)], [*chain.from_iterable(ids)])


def _sample_nodes(rows: RowsSnapshot, found: _StoreNames) -> list[NodeRow]:
    return [*rows.nodes(found.node_ids).values()]


def _sample_edges(rows: RowsSnapshot, node: NodeRow, wanted: AttributeCounts) -> Iterator[EdgeRow]:
    """Yield some edges that start at a node, of types that are wanted."""
    number = rows.number(node.id)
    found = rows.edges_of(number, outgoing=True)
    base = rows.base
    for edge in found.numbers[:MAX_SAMPLED_EDGES_PER_NODE]:
        if wanted.wants(base.names[base.relations[edge]]) and (row := rows.edge_row(edge)) is not None:
            yield row
    for _, _, version in found.changed[:MAX_SAMPLED_EDGES_PER_NODE]:
        if isinstance(row := version.row, EdgeRow) and wanted.wants(row.relation_type):
            yield row


def build_example_cypher_statement(graph: StoreHandle) -> str:
    """Return an example statement with frequent labels of a store; empty if it has no nodes or only long names.

    The statement finds something: its labels and types were seen together.

    Raises NotFound.
    """
    with graph.lease() as store:
        found = store.query_catalog(lambda catalog, _: _list_names(catalog, _EXAMPLE_LABELS, _EXAMPLE_NODES_PER_LABEL))
        edges = AttributeCounts(found.relation_types)
        patterns: Counter[tuple[str, str, str]] = Counter()
        with store.reading() as rows:
            sampled = _sample_nodes(rows, found)
            for row in sampled:
                for edge in _sample_edges(rows, row, edges):
                    if (other := rows.node(edge.target)) is not None:
                        patterns[row.type, edge.relation_type, other.type] += 1
    if not sampled:
        return ""
    [(pattern, _)] = patterns.most_common(1) or [((sampled[0].type, "", ""), 0)]
    return _compose_example(pattern, sampled)


def _compose_example(pattern: tuple[str, str, str], sampled: list[NodeRow]) -> str:
    label, relation_type, other = pattern
    attributes: Counter[str] = Counter()
    for row in sampled:
        if row.type == label:
            attributes.update([*decode_node_attributes(row)])
    returned = ["a.id", *(f"a.{quote_cypher_identifier(name)}" for name in _most_frequent(attributes)[:1])]
    match = f"(a{_label_text(label)})"
    if relation_type:
        match += f"-[:{quote_cypher_identifier(relation_type)}]->(b{_label_text(other)})"
        returned.append("b.id")
    example = f"MATCH {match} RETURN {', '.join(returned)} LIMIT 10"
    return example if len(example) <= _MAX_EXAMPLE_CHARS else ""


def _label_text(label: str) -> str:
    return "" if label == NO_LABEL else f":{quote_cypher_identifier(label)}"
