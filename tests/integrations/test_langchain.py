"""LangChain's graph, retriever and chat history, with LangChain's own fake models."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.documents import Document
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

from kgserve.client import Client, Store
from kgserve.errors import Forbidden
from kgserve.integrations.langchain import (
    LangChainChatHistory,
    LangChainGraph,
    LangChainRetriever,
    build_cypher_question_chain,
    strip_code_fence,
)

DESIGNED = "MATCH (p:Person)-[:DESIGNED]->(m:Machine) RETURN p.id AS person, m.id AS machine"


@pytest.fixture(scope="module")
def machines(client: Client) -> Store:
    store = client.store("langchain-machines")
    store.inject(
        [
            {"id": "ada", "type": "Person", "content": "Ada wrote about the engine", "attributes": {"born": 1815}},
            {"id": "engine", "type": "Machine", "content": "The analytical engine computes", "tags": ["brass"]},
            {"id": "loom", "type": "Machine", "content": "The loom weaves with cards", "attributes": {"cards": True}},
        ],
        [{"from": "ada", "to": "engine", "relation_type": "DESIGNED", "attributes": {"since": 1837}}],
    )
    store.search("engine", at_least=1)
    return store


def test_the_schema_and_rows_of_a_graph(machines: Store) -> None:
    graph = LangChainGraph(machines)
    assert "Person {id: STRING, born: INTEGER, content: STRING}" in graph.schema
    assert "DESIGNED {since: INTEGER}" in graph.get_schema
    assert "(:Person)-[:DESIGNED]->(:Machine)" in graph.schema
    assert graph.get_structured_schema["relationships"] == [{"start": "Person", "type": "DESIGNED", "end": "Machine"}]
    assert graph.query(DESIGNED) == [{"person": "ada", "machine": "engine"}]
    [row] = graph.query("MATCH (p:Person {id: $id})-[r:DESIGNED]->(m:Machine) RETURN p, r, m", {"id": "ada"})
    assert row["p"] == {"id": "ada", "type": "Person", "content": "Ada wrote about the engine", "born": 1815}
    assert row["r"] == {"from": "ada", "type": "DESIGNED", "to": "engine", "since": 1837}
    assert row["m"]["id"] == "engine"
    with pytest.raises(Forbidden):
        graph.query("MATCH (n) DETACH DELETE n")


def test_a_model_answers_a_question_over_cypher(machines: Store) -> None:
    model = FakeListChatModel(responses=[f"```cypher\n{DESIGNED}\n```", "Ada designed it."])
    found = build_cypher_question_chain(model, LangChainGraph(machines)).invoke("Who designed the engine?")
    assert (found["cypher"], found["answer"]) == (DESIGNED, "Ada designed it.")
    assert found["rows"] == [{"person": "ada", "machine": "engine"}]
    model = FakeListChatModel(responses=["MATCH (n) DELETE n", "I do not know."])
    refused = asyncio.run(build_cypher_question_chain(model, LangChainGraph(machines)).ainvoke("Delete all"))
    assert "error" in refused["rows"][0]
    assert machines.count().count == 3
    assert strip_code_fence("Here:\n```\nRETURN 1\n```\nDone") == "RETURN 1"


def test_extracted_graph_documents_are_written(graph: Store) -> None:
    ada, engine = (
        SimpleNamespace(id=name, type=kind, properties={"n": 1}) for name, kind in (("ada", "P"), ("e", "M"))
    )
    relation: Any = SimpleNamespace(source=ada, target=engine, type="DESIGNED", properties={"since": 1837})
    source = Document("Ada designed the engine", metadata={"page": 1})
    document: Any = SimpleNamespace(nodes=[ada], relationships=[relation], source=source)
    adapter = LangChainGraph(graph)
    assert adapter.structured_schema["node_props"] == {}
    adapter.add_graph_documents([document, document], include_source=True)
    adapter.refresh_schema()
    assert {"start": "P", "type": "DESIGNED", "end": "M"} in adapter.structured_schema["relationships"]
    rows = adapter.query("MATCH (d:Document)-[:MENTIONS]->(n) RETURN d.page AS page, n.id AS id ORDER BY id")
    assert rows == [{"page": 1, "id": "ada"}, {"page": 1, "id": "e"}]
    LangChainGraph(graph, allow_writes=True).query("MATCH (d:Document) DETACH DELETE d")
    assert graph.count().count == 2


def test_later_documents_keep_earlier_properties(graph: Store) -> None:
    writer = LangChainGraph(graph)
    bare = SimpleNamespace(id="Ada", type="Person", properties={})
    for properties in ({"born": 1815}, {}, {"died": 1852}):
        ada = SimpleNamespace(id="Ada", type="Person", properties=properties)
        relation = SimpleNamespace(source=bare, target=ada, type="IS", properties={})
        document: Any = SimpleNamespace(nodes=[ada, bare], relationships=[relation], source=Document("a text"))
        writer.add_graph_documents([document])
    assert graph.node("Ada").node.attributes == {"born": 1815, "died": 1852}


def test_the_retriever_filters_and_takes_options_per_call(machines: Store) -> None:
    retriever = LangChainRetriever(store=machines)
    [first, *_] = found = retriever.invoke("analytical engine")
    assert all(isinstance(each, Document) for each in found)
    assert (first.id, first.page_content, first.metadata["type"]) == (
        "engine",
        "The analytical engine computes",
        "Machine",
    )
    assert first.metadata["score"] > 0
    assert len(retriever.invoke("engine", k=1)) == 1
    assert retriever.invoke("analytical engine" + " " * 10_000)[0].id == first.id
    assert len(LangChainRetriever(store=machines, k=1).invoke("engine")) == 1
    assert [each.id for each in asyncio.run(retriever.ainvoke("engine", types=["Person"]))] == ["ada"]
    brass = LangChainRetriever(store=machines, node_tags=["brass"], mode="keyword")
    assert [each.id for each in brass.invoke("engine")] == ["engine"]
    assert [each.id for each in retriever.invoke("engine", attributes={"born": 1815})] == ["ada"]
    assert [each.id for each in retriever.batch(["loom"], k=1)[0]] == ["loom"]
    later = LangChainRetriever(store=machines, options={"at_least": 1, "explain": True}, types=["Person"])
    assert len(later.invoke("Ada")) == 1
    with pytest.raises(ValueError, match="less than or equal to 100"):
        LangChainRetriever(store=machines, k=101)


def test_chat_messages_round_trip_in_order(graph: Store) -> None:
    history: BaseChatMessageHistory = LangChainChatHistory(graph, "one")
    assert history.messages == []
    messages = [
        SystemMessage("be kind"),
        HumanMessage([{"type": "text", "text": "which tea?"}, {"type": "image_url", "image_url": {"url": "x"}}]),
        AIMessage("", tool_calls=[{"name": "find", "args": {"q": None}, "id": "1"}], response_metadata={"a": [1]}),
        ToolMessage("green", tool_call_id="1"),
    ]
    history.add_messages(messages)
    history.add_user_message("thanks")
    assert history.messages == [*messages, HumanMessage("thanks")]
    other = LangChainChatHistory(graph, "two")
    asyncio.run(other.aadd_messages([HumanMessage("alone")]))
    assert [message.content for message in asyncio.run(other.aget_messages())] == ["alone"]
    turns = graph.cypher("MATCH (:chat_message)-[r:next]->(:chat_message) RETURN count(r)").rows
    assert turns == [[4]]
    history.clear()
    history.clear()
    assert history.messages == []
    assert len(other.messages) == 1


def test_messages_of_several_threads_are_all_kept(graph: Store) -> None:
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda n: LangChainChatHistory(graph, "s").add_user_message(str(n)), range(24)))
    assert sorted(int(str(message.content)) for message in LangChainChatHistory(graph, "s").messages) == list(range(24))
