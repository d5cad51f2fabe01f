"""LangChain: a graph for question answering over Cypher, a retriever, and a chat history."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, Protocol

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, message_to_dict, messages_from_dict
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough
from pydantic import Field
from typing_extensions import override

from kgserve.client import Store
from kgserve.errors import KgserveError, NotFound, TooLarge
from kgserve.graph.answers import SearchHit
from kgserve.graph.request_bodies import MAX_QUERY_CHARS
from kgserve.integrations.cypher_records import flatten_cypher_value, format_cypher_schema, read_cypher_schema

MESSAGE_NODE_TYPE = "chat_message"
SESSION_NODE_TYPE = "chat_session"

_NODES_PER_READ = 1_000
_NODES_PER_DELETE = 1_000
_MAX_MESSAGES_PER_SESSION = 9_999
_LAST_MESSAGE_QUERY = """
MATCH (s:Entity {id: $session})-[:HAS_MESSAGE]->(m) RETURN m.id ORDER BY m.id DESC LIMIT 1
"""
_CYPHER_PROMPT = """Write one Cypher statement that answers the question. Use only labels, relationship types and \
properties of the schema. Answer with the statement alone.

Schema:
{schema}

Question: {question}"""
_ANSWER_PROMPT = """Answer the question from the rows alone. If they do not hold the answer, say that you do not know.

Rows: {rows}

Question: {question}"""


class GraphDocumentNode(Protocol):
    """Node that a LangChain graph transformer has extracted."""

    id: Any
    type: str
    properties: dict[str, Any]


class GraphDocumentRelationship(Protocol):
    """Relationship that a LangChain graph transformer has extracted."""

    source: Any
    target: Any
    type: str
    properties: dict[str, Any]


class GraphDocument(Protocol):
    """Extracted nodes and relationships with their source, as of `langchain_neo4j` or `langchain_community`."""

    nodes: list[Any]
    relationships: list[Any]
    source: Any


class LangChainGraph:
    """Graph with the methods of LangChain's graph stores: `schema`, `query` and `add_graph_documents`.

    ``allow_writes``: let `query` change the store. Leave it off where a language model writes the statements.
    """

    def __init__(self, store: Store, *, allow_writes: bool = False, timeout_ms: int | None = None) -> None:
        self.store = store
        self._mode: Literal["read", "write"] = "write" if allow_writes else "read"
        self._timeout_ms = timeout_ms
        self._structured_schema: dict[str, Any] | None = None

    @property
    def schema(self) -> str:
        """The schema as text for a prompt; read once, and again by `refresh_schema`."""
        return format_cypher_schema(self.structured_schema)

    @property
    def structured_schema(self) -> dict[str, Any]:
        """The schema as `node_props`, `rel_props` and `relationships`."""
        if self._structured_schema is None:
            self._structured_schema = read_cypher_schema(self.store)
        return self._structured_schema

    @property
    def get_schema(self) -> str:
        """The same as `schema`; LangChain's chains use this name."""
        return self.schema

    @property
    def get_structured_schema(self) -> dict[str, Any]:
        """The same as `structured_schema`; LangChain's chains use this name."""
        return self.structured_schema

    def refresh_schema(self) -> None:
        """Read the schema again."""
        self._structured_schema = read_cypher_schema(self.store)

    def query(self, query: str, params: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """Run a Cypher statement and return its rows; nodes and relationships appear as their properties."""
        records = self.store.cypher(query, params, mode=self._mode, timeout_ms=self._timeout_ms).records()
        return [flatten_cypher_value(record) for record in records]

    def add_graph_documents(self, graph_documents: Iterable[GraphDocument], include_source: bool = False) -> None:
        """Write extracted nodes and relationships, each document in one commit.

        ``include_source``: also write the source documents, with edges MENTIONS to the nodes extracted from them.
        """
        for document in graph_documents:
            ends = [end for each in document.relationships for end in (each.source, each.target)]
            nodes: dict[str, dict[str, Any]] = {}
            for node in map(_extracted_node, [*ends, *document.nodes]):
                known = nodes.get(node["id"], node)["attributes"]
                nodes[node["id"]] = node | {"attributes": known | node["attributes"]}
            edges = [_extracted_edge(each) for each in document.relationships]
            if include_source:
                source = _source_node(document.source)
                edges += [{"from": source["id"], "to": each, "relation_type": "MENTIONS"} for each in nodes]
                nodes[source["id"]] = source
            self._keep_known_properties(nodes)
            self.store.inject(nodes.values(), edges)

    def _keep_known_properties(self, nodes: dict[str, dict[str, Any]]) -> None:
        """Add the properties that earlier documents gave to the nodes; a write replaces all properties of a node."""
        ids = list(nodes)
        with suppress(NotFound):
            for start in range(0, len(ids), _NODES_PER_READ):
                for node in self.store.get_nodes(ids[start : start + _NODES_PER_READ]).nodes:
                    if node.id in nodes:
                        nodes[node.id]["attributes"] = dict(node.attributes) | nodes[node.id]["attributes"]


def build_cypher_question_chain(model: BaseChatModel, graph: LangChainGraph) -> Runnable[Any, dict[str, Any]]:
    """Return a chain from a question to its ``answer``, with the ``cypher`` and ``rows`` that it was answered from.

    The model writes a Cypher statement from the schema; a statement that the server refuses is answered with its error
    as the only row.
    """
    written: Runnable[Any, str] = ChatPromptTemplate.from_template(_CYPHER_PROMPT) | model | StrOutputParser()
    answered: Runnable[Any, str] = ChatPromptTemplate.from_template(_ANSWER_PROMPT) | model | StrOutputParser()

    def rows(found: dict[str, Any]) -> list[dict[str, Any]]:
        try:
            return graph.query(found["cypher"])
        except KgserveError as error:
            return [{"error": str(error)}]

    begun = RunnableLambda(lambda question: {"question": question, "schema": graph.schema})
    return (
        begun
        | RunnablePassthrough.assign(cypher=written | strip_code_fence)
        | RunnablePassthrough.assign(rows=RunnableLambda(rows))
        | RunnablePassthrough.assign(answer=answered)
    )


def strip_code_fence(text: str) -> str:
    """Return the statement that a model has put between ``` or a `cypher` code fence."""
    _, fence, fenced = text.partition("```")
    return fenced.partition("```")[0].removeprefix("cypher").strip() if fence else text.strip()


class LangChainRetriever(BaseRetriever):
    """LangChain retriever over a store's search. `k`, `types`, `node_tags` and `attributes` can be given per call.

    A document's metadata are the attributes of its node, and its `id`, `type` and `score`.
    """

    store: Store
    k: int = Field(default=4, ge=1, le=100)
    """Maximum number of documents."""
    mode: Literal["hybrid", "keyword", "semantic", "graph"] = "hybrid"
    types: list[str] | None = None
    """Only nodes of these types."""
    node_tags: list[str] | None = None
    """Only nodes with all of these tags."""
    attributes: dict[str, Any] | None = None
    """Only nodes with all of these attributes."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Further options of `Store.search`, such as `min_similarity`, `as_of` and `fresh_only`."""

    @override
    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun | None = None, **given: Any
    ) -> list[Document]:
        filters = {"types": self.types, "tags": self.node_tags, "attributes": self.attributes}
        if "node_tags" in given:
            given["tags"] = given.pop("node_tags")
        asked: dict[str, Any] = {"mode": self.mode, **filters, **self.options, **given}
        hits = self.store.search(query[:MAX_QUERY_CHARS], limit=asked.pop("k", self.k), **asked).hits
        return [_hit_document(hit) for hit in hits]

    @override
    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun | None = None, **given: Any
    ) -> list[Document]:
        return await asyncio.to_thread(self._get_relevant_documents, query, **given)


class LangChainChatHistory(BaseChatMessageHistory):
    """Chat history of one session, each message a node that search finds; several programs may add to it."""

    def __init__(self, store: Store, session_id: str) -> None:
        self.store = store
        self.session_id = session_id
        self._node_id = f"chat/{session_id}"
        self._lock = threading.Lock()
        self._last_microseconds = 0

    @property
    @override
    def messages(self) -> list[BaseMessage]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return messages_from_dict([node.attributes["message"] for node in self._message_nodes()])

    @override
    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        try:
            rows = self.store.cypher(_LAST_MESSAGE_QUERY, {"session": self._node_id}).rows
        except NotFound:
            rows = []
        last = rows[0][0] if rows else None
        nodes: list[dict[str, Any]] = [{"id": self._node_id, "type": SESSION_NODE_TYPE}]
        edges: list[dict[str, Any]] = []
        for message, message_id in zip(messages, self._new_ids(len(messages)), strict=True):
            attributes = {"role": message.type, "message": message_to_dict(message)}
            nodes.append(
                {"id": message_id, "type": MESSAGE_NODE_TYPE, "content": str(message.text), "attributes": attributes}
            )
            edges.append({"from": self._node_id, "to": message_id, "relation_type": "HAS_MESSAGE"})
            if last:
                edges.append({"from": last, "to": message_id, "relation_type": "next"})
            last = message_id
        self.store.inject(nodes, edges)

    @override
    def clear(self) -> None:
        while ids := [node.id for node in self._read_messages()[0]]:
            for start in range(0, len(ids), _NODES_PER_DELETE):
                self.store.delete_nodes(ids=ids[start : start + _NODES_PER_DELETE], valid_at="any")

    def _message_nodes(self) -> list[Any]:
        nodes, is_truncated = self._read_messages()
        if is_truncated:
            limit = f"{_MAX_MESSAGES_PER_SESSION:,}"
            raise TooLarge(
                f"session {self.session_id!r} has more than {limit} messages; clear it, or begin another one"
            )
        return sorted(nodes, key=lambda node: node.id)

    def _read_messages(self) -> tuple[list[Any], bool]:
        """Return the messages in any order, and whether there are more."""
        try:
            walk = self.store.traverse(self._node_id, relation_types=["HAS_MESSAGE"])
        except NotFound:
            return [], False
        return [node for node in walk if node.type == MESSAGE_NODE_TYPE], walk.truncated

    def _new_ids(self, number: int) -> list[str]:
        """Return ids in the order of time, which other programs do not make."""
        with self._lock:
            first = max(time.time_ns() // 1000, self._last_microseconds + 1)
            self._last_microseconds = first + number
        return [f"{self._node_id}/{first + place:017}-{uuid.uuid4().hex[:8]}" for place in range(number)]


def _hit_document(hit: SearchHit) -> Document:
    node = hit.node
    metadata = {**node.attributes, "id": node.id, "type": node.type, "score": hit.score}
    return Document(page_content=node.content, metadata=metadata, id=node.id)


def _extracted_node(node: GraphDocumentNode) -> dict[str, Any]:
    name = str(node.id)
    return {"id": name, "type": node.type, "content": name, "attributes": dict(node.properties)}


def _extracted_edge(each: GraphDocumentRelationship) -> dict[str, Any]:
    return {
        "from": str(each.source.id),
        "to": str(each.target.id),
        "relation_type": each.type,
        "attributes": dict(each.properties),
    }


def _source_node(source: Document) -> dict[str, Any]:
    name = source.id or str(uuid.uuid5(uuid.NAMESPACE_OID, source.page_content))
    return {"id": name, "type": "Document", "content": source.page_content, "attributes": dict(source.metadata)}
