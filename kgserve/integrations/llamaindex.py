"""LlamaIndex: a property graph store with structured and vector queries, and a retriever."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Literal

from llama_index.core.callbacks import CallbackManager
from llama_index.core.graph_stores.types import (
    ChunkNode,
    EntityNode,
    LabelledNode,
    PropertyGraphStore,
    Relation,
    Triplet,
)
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
)
from typing_extensions import override

from kgserve.client import Store
from kgserve.errors import NotFound
from kgserve.graph.answers import Edge, Node
from kgserve.graph.request_bodies import MAX_QUERY_CHARS
from kgserve.integrations.cypher_records import (
    flatten_cypher_value,
    format_cypher_schema,
    read_cypher_schema,
)

CHUNK_TAG = "llamaindex:chunk"
ENTITY_TAG = "llamaindex:entity"
_EMBEDDING = "embedding"
_NODES_PER_REQUEST = 500
_MAX_SEARCH_HITS = 100
_MAX_CONDITIONS = 20
_TRIPLET = "RETURN a.id, type(r), properties(r), b.id"
_FROM_SOURCE, _FROM_TARGET = (f"MATCH (a)-[r]->(b) WHERE {end}.id IN $ids {_TRIPLET}" for end in ("a", "b"))
_ALL_TRIPLETS = f"MATCH (a)-[r]->(b) {_TRIPLET}"
_OPERATORS = {
    FilterOperator.EQ: "=",
    FilterOperator.NE: "<>",
    FilterOperator.GT: ">",
    FilterOperator.GTE: ">=",
    FilterOperator.LT: "<",
    FilterOperator.LTE: "<=",
    FilterOperator.IN: "IN",
    FilterOperator.TEXT_MATCH: "CONTAINS",
}


class LlamaIndexGraphStore(PropertyGraphStore):
    """LlamaIndex `PropertyGraphStore` over ``store``: labels are node types, ids are names of entities.

    ``allow_writes``: let `structured_query` change the store. Leave it off where a language model writes the
    statements. A vector query without an embedding searches by words and meaning.
    """

    supports_structured_queries = True
    supports_vector_queries = True

    def __init__(self, store: Store, *, allow_writes: bool = False) -> None:
        self.store = store
        self._mode: Literal["read", "write"] = "write" if allow_writes else "read"
        self._schema: dict[str, Any] | None = None
        self._written_sequence: int | None = None

    @property
    @override
    def client(self) -> Store:
        return self.store

    @override
    def get(self, properties: dict[str, Any] | None = None, ids: list[str] | None = None) -> list[LabelledNode]:
        """Return the nodes with all of these properties and one of these ids; without either, all nodes."""
        try:
            if ids is None:
                with self.store.nodes(attributes=_scalars(properties) or None) as found:
                    nodes = list(found)
            else:
                nodes = self._nodes_by_id(ids)
        except NotFound:
            return []
        return [_labelled_node(node) for node in nodes if _has_properties(node.attributes, properties)]

    @override
    def get_triplets(
        self,
        entity_names: list[str] | None = None,
        relation_names: list[str] | None = None,
        properties: dict[str, Any] | None = None,
        ids: list[str] | None = None,
    ) -> list[Triplet]:
        """Return the triplets of these entities, relations and properties; all conditions given must hold."""
        names = [*map(_entity_id, entity_names or ()), *(ids or ())]
        if not (names or relation_names or properties):
            return []
        found = self._triplets(names)
        return [
            triplet
            for triplet in found.values()
            if (not relation_names or triplet[1].label in relation_names)
            and (not properties or any(_has_properties(part.properties, properties) for part in triplet))
        ]

    @override
    def get_rel_map(
        self,
        graph_nodes: list[LabelledNode],
        depth: int = 2,
        limit: int = 30,
        ignore_rels: list[str] | None = None,
    ) -> list[Triplet]:
        """Return the triplets within ``depth`` hops of nodes, nearest first, at most ``limit``."""
        found: dict[tuple[str, str, str], tuple[int, Triplet]] = {}
        ignored = set(ignore_rels or ())
        for start in graph_nodes:
            try:
                walk = self.store.traverse(start.id, depth=depth, direction="both")
            except NotFound:
                break
            nodes = {node.id: node for node in walk.nodes}
            for edge in walk.edges:
                distance = min(nodes[edge.source].depth, nodes[edge.target].depth)
                key = edge.source, edge.relation_type, edge.target
                known = found[key][0] if key in found else depth
                if edge.relation_type not in ignored and distance < known:
                    ends = _labelled_node(nodes[edge.source]), _labelled_node(nodes[edge.target])
                    found[key] = distance, (ends[0], _relation(edge), ends[1])
        ordered = sorted(found.values(), key=lambda each: each[0])
        return [triplet for _, triplet in ordered[:limit]]

    @override
    def upsert_nodes(self, nodes: Sequence[LabelledNode]) -> None:
        """Write nodes with all of their properties. An entity keeps the label that it was first written with."""
        for start in range(0, len(nodes), _NODES_PER_REQUEST):
            page = {node.id: node for node in nodes[start : start + _NODES_PER_REQUEST]}
            types = {node.id: node.type for node in self._nodes_by_id(page)}
            written = self.store.inject([_node_input(node, types.get(node.id)) for node in page.values()])
            self._written_sequence = written.sequence

    @override
    def upsert_relations(self, relations: list[Relation]) -> None:
        """Write relations. An end that does not exist yet becomes an entity."""
        for start in range(0, len(relations), _NODES_PER_REQUEST):
            page = relations[start : start + _NODES_PER_REQUEST]
            ends = {end for each in page for end in (each.source_id, each.target_id)}
            missing = ends - {node.id for node in self._nodes_by_id(ends)}
            edges = [
                {
                    "from": each.source_id,
                    "to": each.target_id,
                    "relation_type": each.label,
                    "attributes": each.properties,
                }
                for each in page
            ]
            # An entity derives its id from its name, without quotation marks.
            entities = [_node_input(EntityNode(name=end)) | {"id": end} for end in sorted(missing)]
            self._written_sequence = self.store.inject(entities, edges).sequence

    @override
    def delete(
        self,
        entity_names: list[str] | None = None,
        relation_names: list[str] | None = None,
        properties: dict[str, Any] | None = None,
        ids: list[str] | None = None,
    ) -> None:
        """Delete nodes by name, id or properties, and relations by label; each argument on its own."""
        doomed = [*map(_entity_id, entity_names or ()), *(ids or ())]
        if properties:
            doomed += [node.id for node in self.get(properties=properties)]
        try:
            for start in range(0, len(doomed), _NODES_PER_REQUEST):
                self.store.delete_nodes(ids=doomed[start : start + _NODES_PER_REQUEST], valid_at="any")
            for name in relation_names or ():
                statement = "MATCH ()-[r]->() WHERE type(r) = $name DELETE r"
                self.store.cypher(statement, {"name": name}, mode="write")
        except NotFound:
            return

    @override
    def structured_query(self, query: str, param_map: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        records = self.store.cypher(query, param_map, mode=self._mode).records()
        return [flatten_cypher_value(record) for record in records]

    @override
    def vector_query(self, query: VectorStoreQuery, **kwargs: Any) -> tuple[list[LabelledNode], list[float]]:
        """Return the nodes whose embeddings are nearest, with their cosines from 0 to 1."""
        condition, params = build_filter_condition(query.filters)
        if query.query_embedding is None:
            return self._search_by_text(query, condition, params)
        statement = (
            f"MATCH (n) WHERE n.{_EMBEDDING} IS NOT NULL AND {condition} "
            f"RETURN n.id AS id, vector.similarity.cosine(n.{_EMBEDDING}, $vector) AS score "
            "ORDER BY score DESC LIMIT $k"
        )
        params |= {"vector": query.query_embedding, "k": query.similarity_top_k}
        try:
            scores = {row[0]: row[1] for row in self.store.cypher(statement, params).rows}
        except NotFound:
            return [], []
        nodes = [node for node in self._nodes_by_id(scores) if node.id in scores]
        return [_labelled_node(node) for node in nodes], [scores[node.id] for node in nodes]

    def _search_by_text(
        self, query: VectorStoreQuery, condition: str, params: dict[str, Any]
    ) -> tuple[list[LabelledNode], list[float]]:
        """Return the best nodes that fulfil a condition, with their scores; of the best 100 hits if there is one."""
        limit = _MAX_SEARCH_HITS if query.filters else query.similarity_top_k
        try:
            text = (query.query_str or "")[:MAX_QUERY_CHARS]
            hits = self.store.search(text, limit=limit, at_least=self._written_sequence).hits
            if query.filters:
                statement = f"MATCH (n) WHERE n.id IN $ids AND {condition} RETURN n.id"
                rows = self.store.cypher(statement, params | {"ids": [hit.node.id for hit in hits]}).rows
                fitting = {row[0] for row in rows}
                hits = [hit for hit in hits if hit.node.id in fitting][: query.similarity_top_k]
        except NotFound:
            return [], []
        return [_labelled_node(hit.node) for hit in hits], [hit.score for hit in hits]

    @override
    def get_schema(self, refresh: bool = False) -> dict[str, Any]:
        if self._schema is None or refresh:
            self._schema = read_cypher_schema(self.store)
        return self._schema

    @override
    def get_schema_str(self, refresh: bool = False) -> str:
        return format_cypher_schema(self.get_schema(refresh))

    def _nodes_by_id(self, ids: Iterable[str]) -> list[Node]:
        wanted = list(ids)
        starts = range(0, len(wanted), _NODES_PER_REQUEST)
        try:
            pages = [
                self.store.get_nodes(wanted[start : start + _NODES_PER_REQUEST], valid_at="now").nodes
                for start in starts
            ]
        except NotFound:
            return []
        return [node for page in pages for node in page]

    def _triplets(self, names: Sequence[str]) -> dict[tuple[str, str, str], Triplet]:
        relations: dict[tuple[str, str, str], Relation] = {}
        for statement in (_FROM_SOURCE, _FROM_TARGET) if names else (_ALL_TRIPLETS,):
            try:
                with self.store.cypher_rows(statement, {"ids": list(names)} if names else {}) as rows:
                    for source, label, properties, target in rows:
                        relation = Relation(label=label, source_id=source, target_id=target, properties=properties)
                        relations[source, label, target] = relation
            except NotFound:
                break
        ends = {end for source, _, target in relations for end in (source, target)}
        nodes = {node.id: _labelled_node(node) for node in self._nodes_by_id(ends)}
        return {
            (source, label, target): (nodes[source], relation, nodes[target])
            for (source, label, target), relation in relations.items()
            if source in nodes and target in nodes
        }


class LlamaIndexRetriever(BaseRetriever):
    """LlamaIndex retriever over a store's search. ``options``: those of `Store.search`, such as `types` and `mode`."""

    def __init__(
        self,
        store: Store,
        *,
        similarity_top_k: int = 10,
        callback_manager: CallbackManager | None = None,
        **options: Any,
    ) -> None:
        super().__init__(callback_manager=callback_manager)
        self.store = store
        self.similarity_top_k = similarity_top_k
        self.options = options

    @override
    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        hits = self.store.search(query_bundle.query_str, limit=self.similarity_top_k, **self.options).hits
        return [NodeWithScore(node=_text_node(hit.node), score=hit.score) for hit in hits]

    @override
    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)


def build_filter_condition(filters: MetadataFilters | None) -> tuple[str, dict[str, Any]]:
    """Return metadata filters as a Cypher condition on the node ``n``, with its parameters."""
    params: dict[str, Any] = {}
    return _group_condition(filters, params) if filters and filters.filters else "true", params


def _group_condition(filters: MetadataFilters, params: dict[str, Any]) -> str:
    parts = [
        f"({_group_condition(each, params)})" if isinstance(each, MetadataFilters) else _single_condition(each, params)
        for each in filters.filters
    ]
    if filters.condition == FilterCondition.NOT:
        return f"NOT ({' AND '.join(parts)})"
    return " OR ".join(parts).join("()") if filters.condition == FilterCondition.OR else " AND ".join(parts)


def _single_condition(each: MetadataFilter, params: dict[str, Any]) -> str:
    name = f"f{len(params)}"
    key = f"n[$key_{name}]"
    params[f"key_{name}"] = each.key
    if each.operator == FilterOperator.IS_EMPTY:
        return f"{key} IS NULL"
    params[name] = each.value
    if each.operator == FilterOperator.NIN:
        return f"NOT {key} IN ${name}"
    if each.operator == FilterOperator.CONTAINS:
        return f"${name} IN {key}"
    if each.operator not in _OPERATORS:
        raise ValueError(f"the filter operator {each.operator.value!r} is not supported; filter the result instead")
    return f"{key} {_OPERATORS[each.operator]} ${name}"


def _node_input(node: LabelledNode, kept_type: str | None = None) -> dict[str, Any]:
    attributes = dict(node.properties)
    if node.embedding is not None:
        attributes[_EMBEDDING] = node.embedding
    chunk = isinstance(node, ChunkNode)
    return {
        "id": node.id,
        "type": kept_type or node.label,
        "content": node.text if chunk else getattr(node, "name", node.id),
        "attributes": attributes,
        "tags": [CHUNK_TAG if chunk else ENTITY_TAG],
    }


def _labelled_node(node: Node) -> LabelledNode:
    """Return a chunk or an entity; nodes that LlamaIndex did not write are entities with their content as property."""
    properties, label, tags = dict(node.attributes), node.type, node.tags or ()
    embedding = properties.pop(_EMBEDDING, None)
    if CHUNK_TAG in tags:
        return ChunkNode(text=node.content, id_=node.id, label=label, properties=properties, embedding=embedding)
    if ENTITY_TAG in tags:
        return EntityNode(name=node.content, label=label, properties=properties, embedding=embedding)
    if node.content:
        properties.setdefault("content", node.content)
    return EntityNode(name=node.id, label=label, properties=properties, embedding=embedding)


def _relation(edge: Edge) -> Relation:
    own = {"created_at", "updated_at"}
    properties = {name: each for name, each in edge.attributes.items() if name not in own}
    return Relation(label=edge.relation_type, source_id=edge.source, target_id=edge.target, properties=properties)


def _text_node(node: Node) -> TextNode:
    properties = {name: each for name, each in node.attributes.items() if name != _EMBEDDING}
    return TextNode(id_=node.id, text=node.content, metadata={**properties, "type": node.type})


def _entity_id(name: str) -> str:
    return EntityNode(name=name).id


def _scalars(properties: dict[str, Any] | None) -> dict[str, Any]:
    """Return the conditions that the server can apply itself; the caller applies all."""
    found = ((name, each) for name, each in (properties or {}).items() if isinstance(each, str | int | float))
    return dict(islice(found, _MAX_CONDITIONS))


def _has_properties(found: dict[str, Any], wanted: dict[str, Any] | None) -> bool:
    return all(name in found and found[name] == each for name, each in (wanted or {}).items())
