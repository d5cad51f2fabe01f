"""LlamaIndex's property graph store and retriever, with LlamaIndex's own mock models and its PropertyGraphIndex."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from llama_index.core import MockEmbedding, PropertyGraphIndex
from llama_index.core.graph_stores.types import ChunkNode, EntityNode, Relation
from llama_index.core.indices.property_graph import ImplicitPathExtractor
from llama_index.core.llms import MockLLM
from llama_index.core.schema import Document, TextNode
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
)

from kgserve.client import Client, Store
from kgserve.errors import Forbidden, NotFound
from kgserve.integrations.llamaindex import LlamaIndexGraphStore, LlamaIndexRetriever

ADA = EntityNode(name='Ada "Countess" Lovelace', label="Person", properties={"born": 1815}, embedding=[1.0, 0.0])
ENGINE = EntityNode(name="Engine", label="Machine", properties={"parts": ["mill"]}, embedding=[0.0, 1.0])
CHUNK = ChunkNode(text="Ada wrote about the engine", id_="chunk-1", properties={"page": 3}, embedding=[0.7, 0.7])
DESIGNED = Relation(label="DESIGNED", source_id=ADA.id, target_id=ENGINE.id, properties={"since": 1837})
MENTIONS = Relation(label="MENTIONS", source_id="chunk-1", target_id=ADA.id)


def filled(store: Store) -> LlamaIndexGraphStore:
    graph = LlamaIndexGraphStore(store)
    graph.upsert_nodes([ADA, ENGINE, CHUNK])
    graph.upsert_relations([DESIGNED, MENTIONS])
    return graph


@pytest.fixture(scope="module")
def machines(client: Client) -> LlamaIndexGraphStore:
    return filled(client.store("llamaindex-machines"))


def test_nodes_round_trip(machines: LlamaIndexGraphStore) -> None:
    assert {node.id: node for node in machines.get()} == {node.id: node for node in (ADA, ENGINE, CHUNK)}
    assert machines.get(ids=[CHUNK.id, "none"]) == [CHUNK]
    assert machines.get(properties={"born": 1815}) == [ADA]
    assert machines.get(properties={"parts": ["mill"]}) == [ENGINE]
    assert machines.get(properties={"born": 1815}, ids=[ENGINE.id]) == []
    assert machines.get(ids=[]) == []
    assert asyncio.run(machines.aget(ids=[ADA.id])) == [ADA]


def test_triplets(machines: LlamaIndexGraphStore) -> None:
    designed, mentions = (ADA, DESIGNED, ENGINE), (CHUNK, MENTIONS, ADA)
    assert machines.get_triplets() == []
    assert machines.get_triplets(entity_names=[ENGINE.name]) == [designed]
    assert sorted(machines.get_triplets(entity_names=[ADA.name]), key=str) == sorted([designed, mentions], key=str)
    assert machines.get_triplets(relation_names=["MENTIONS"]) == [mentions]
    assert machines.get_triplets(properties={"since": 1837}) == [designed]
    assert machines.get_triplets(ids=[CHUNK.id], relation_names=["DESIGNED"]) == []
    assert machines.get_rel_map([CHUNK], depth=1) == [mentions]
    assert machines.get_rel_map([CHUNK], depth=2) == [mentions, designed]
    assert machines.get_rel_map([CHUNK], depth=2, ignore_rels=["MENTIONS"]) == [designed]
    assert machines.get_rel_map([CHUNK, ENGINE], depth=2, limit=1) == [mentions]


def equal(key: str, value: Any, operator: FilterOperator = FilterOperator.EQ) -> MetadataFilter:
    return MetadataFilter(key=key, value=value, operator=operator)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (None, [ADA.id, CHUNK.id]),
        (MetadataFilters(filters=[equal("page", 2, FilterOperator.GT)]), [CHUNK.id]),
        (MetadataFilters(filters=[equal("born", [1815], FilterOperator.IN)]), [ADA.id]),
        (MetadataFilters(filters=[equal("parts", "mill", FilterOperator.CONTAINS)]), [ENGINE.id]),
        (
            MetadataFilters(filters=[equal("page", 3), equal("born", 1815)], condition=FilterCondition.OR),
            [ADA.id, CHUNK.id],
        ),
        (MetadataFilters(filters=[equal("page", 3), equal("born", 1815)]), []),
    ],
)
def test_vector_queries(filters: MetadataFilters | None, expected: list[str], machines: LlamaIndexGraphStore) -> None:
    query = VectorStoreQuery(query_embedding=[1.0, 0.1], similarity_top_k=2, filters=filters)
    nodes, scores = machines.vector_query(query)
    assert [node.id for node in nodes] == expected
    assert scores == sorted(scores, reverse=True)
    unsupported = MetadataFilters(filters=[equal("page", [3], FilterOperator.ANY)])
    with pytest.raises(ValueError, match="'any' is not supported"):
        machines.vector_query(VectorStoreQuery(query_embedding=[1.0, 0.1], filters=unsupported))


def test_structured_queries_and_schema(machines: LlamaIndexGraphStore) -> None:
    rows = machines.structured_query("MATCH (p:Person) WHERE p.born < $year RETURN p.id AS id", {"year": 1900})
    assert rows == [{"id": ADA.id}]
    assert "(:Person)-[:DESIGNED]->(:Machine)" in machines.get_schema_str()
    with pytest.raises(Forbidden):
        machines.structured_query("MATCH (n) DETACH DELETE n")


def test_writing_again_and_deleting(graph: Store) -> None:
    adapter = filled(graph)
    adapter.upsert_nodes([EntityNode(name="Engine", label="Thing", properties={"n": 2})])
    assert adapter.get(ids=["Engine"]) == [EntityNode(name="Engine", label="Machine", properties={"n": 2})]
    adapter.upsert_relations([Relation(label="KNOWS", source_id=ADA.id, target_id="Charles")])
    assert adapter.get(ids=["Charles"]) == [EntityNode(name="Charles")]
    adapter.delete(relation_names=["KNOWS"])
    assert adapter.get_triplets(relation_names=["KNOWS"]) == []
    adapter.delete(entity_names=[ADA.name])
    adapter.delete(properties={"n": 2})
    adapter.delete(ids=["chunk-1"])
    adapter.delete()
    assert [node.id for node in adapter.get()] == ["Charles"]


def test_text_queries_filter_and_odd_ends_keep_their_relations(graph: Store) -> None:
    people = LlamaIndexGraphStore(graph)
    assert people.vector_query(VectorStoreQuery(query_str="Ada", similarity_top_k=5)) == ([], [])
    people.upsert_nodes(
        [
            EntityNode(name="Ada", properties={"team": "red"}),
            EntityNode(name="Ada Bob", properties={"team": "blue"}),
        ]
    )
    blue = MetadataFilters(filters=[MetadataFilter(key="team", value="blue")])
    nodes, scores = people.vector_query(VectorStoreQuery(query_str="Ada", similarity_top_k=1, filters=blue))
    assert ([node.id for node in nodes], len(scores)) == (["Ada Bob"], 1)
    people.upsert_relations([Relation(label="KNOWS", source_id='New "q"', target_id="Ada")])
    found = people.get_triplets(relation_names=["KNOWS"])
    assert [(relation.source_id, relation.target_id) for _, relation, _ in found] == [('New "q"', "Ada")]
    assert people.get(properties={f"p{number}": number for number in range(21)}) == []
    graph.retire("Ada")
    assert people.get(ids=["Ada"]) == []
    people.delete(ids=["Ada"])
    with pytest.raises(NotFound):
        graph.node("Ada")


def test_an_index_is_built_and_queried(graph: Store) -> None:
    adapter = LlamaIndexGraphStore(graph)
    assert adapter.get() == []
    assert adapter.get_triplets(["a"]) == []
    assert adapter.vector_query(VectorStoreQuery(query_embedding=[1.0])) == ([], [])
    index = PropertyGraphIndex.from_documents(
        [Document(text="Ada designed the engine", id_="doc", metadata={"source": "letter"})],
        property_graph_store=adapter,
        kg_extractors=[ImplicitPathExtractor()],
        embed_model=MockEmbedding(embed_dim=4),
        llm=MockLLM(),
    )
    found = index.as_retriever(include_text=True).retrieve("engine")
    assert [node.metadata.get("source") for node in adapter.get_llama_nodes([each.id for each in adapter.get()])]
    assert found is not None
    adapter.delete_llama_nodes(ref_doc_ids=["doc"])
    assert not [node for node in adapter.get() if isinstance(node, ChunkNode)]


def test_the_retriever(machines: LlamaIndexGraphStore) -> None:
    machines.store.search("engine", at_least=1)
    retriever = LlamaIndexRetriever(machines.store, similarity_top_k=1, types=["text_chunk"])
    [found] = retriever.retrieve("engine")
    assert isinstance(found.node, TextNode)
    assert (found.node_id, found.text, found.metadata["page"]) == ("chunk-1", CHUNK.text, 3)
    assert [each.node_id for each in asyncio.run(retriever.aretrieve("engine"))] == ["chunk-1"]
    nodes, _ = machines.vector_query(VectorStoreQuery(query_str="Ada wrote", similarity_top_k=1))
    assert nodes == [CHUNK]
