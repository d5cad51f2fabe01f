"""Registers of a store over its interfaces: nodes and edges, written and read over REST, in Cypher and over MCP."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar, NamedTuple

import httpx
from mcp import Client
from mcp.client.client import ConnectMode
from mcp.types import CallToolResult, TextContent
from typing_extensions import override

from bench.register import Answer, RegisterStep, Shown

NODES = ("alpha", "beta", "gamma")
"""Nodes that are registers: their content ends with the value."""
EDGES = ("north", "south")
"""Edges that are registers, named by their ends: their weight is the value. Their ends are never deleted."""
ANCHOR = "anchor"
TYPE = "register"
RELATION = "HOLDS"
SECONDS = 30.0

Json = dict[str, Any]
Looked = dict[str, tuple[Shown | None, int]]
"""Observed content of each register, and the commit that wrote it, 0 if none did."""

_NODE = "MATCH (n:Entity {id: $key})"
_EDGE = f"MATCH (:Entity {{id: '{ANCHOR}'}})-[e:RELATES_TO {{relation_type: '{RELATION}'}}]->(:Entity {{id: $key}})"


class OperationRejected(Exception):
    """The server reports that the operation was not executed, and why."""


class OutcomeUnknown(Exception):
    """The server reports a failure that leaves the outcome unknown."""


class SearchExpectation(NamedTuple):
    """Search terms, and the commit from which on the answer must be current."""

    words: str = ""
    at_least: int = 0


class WriteAcknowledgement(NamedTuple):
    """Answer of a write, and its commit."""

    answer: Answer
    sequence: int


class RegisterInterface(ABC):
    """A client over one interface. Raises OperationRejected, OutcomeUnknown, and the errors of broken connections."""

    NAME: ClassVar[str]
    KINDS: ClassVar[tuple[str, ...]]
    """Supported steps, weighted by repetition; edges cannot be ``put``."""
    NODE_LOOKS: ClassVar[tuple[str, ...]]
    EDGE_LOOKS: ClassVar[tuple[str, ...]]

    def __init__(self, store: str) -> None:
        self.store = store

    @abstractmethod
    def visit(self, url: str) -> Any:
        """Use a server for the duration of a block."""

    @abstractmethod
    async def write(self, key: str, step: RegisterStep, *, in_cypher: bool) -> WriteAcknowledgement:
        """Change a register."""

    @abstractmethod
    async def look(self, way: str, key: str, sought: SearchExpectation) -> Looked:
        """Read a register, and others that the same request shows; ``sought`` is for searches."""


class RestRegisters(RegisterInterface):
    """REST client, including Cypher."""

    NAME = "REST"
    KINDS = ("inject",) * 4 + ("put",) * 5 + ("set",) + ("delete",) * 3
    NODE_LOOKS = ("node", "node", "walk", "list", "list of type", "cypher", "search", "search")
    EDGE_LOOKS = ("edge", "outgoing", "walk", "cypher")

    @override
    @asynccontextmanager
    async def visit(self, url: str) -> AsyncGenerator[None]:
        async with httpx.AsyncClient(base_url=f"{url}/api/memory/{self.store}", timeout=SECONDS) as self._http:
            yield

    @override
    async def write(self, key: str, step: RegisterStep, *, in_cypher: bool) -> WriteAcknowledgement:
        if step.kind == "set" or (step.kind == "delete" and in_cypher):
            return await self._change_by_cypher(key, step)
        match step.kind:
            case "inject":
                return _injected(key, await self._send("POST", "/inject", _batch(key, step.value)))
            case "put":
                return _put(await self._send("POST", "/nodes", _version(key, step)))
            case _ if key in EDGES:
                edge = {"from": ANCHOR, "to": key, "relation_type": RELATION}
                return _deleted(await self._send("DELETE", "/edges", edge))
            case _:
                return _deleted(await self._send("DELETE", f"/nodes/{key}"))

    @override
    async def look(self, way: str, key: str, sought: SearchExpectation) -> Looked:
        if way == "cypher":
            return _rows(key, (await self._send("POST", "/cypher", _question(key)))["rows"])
        return await (self._read_edge(way, key) if key in EDGES else self._read_node(way, key, sought))

    async def _read_node(self, way: str, key: str, sought: SearchExpectation) -> Looked:
        match way:
            case "node":
                found = await self._send("GET", f"/nodes/{key}", missing={"node": None})
                return _nodes([key], [found["node"]] if found["node"] else [])
            case "list" | "list of type":
                wanted = f"?type={TYPE}" if way == "list of type" else "?limit=50"
                return _nodes(NODES, (await self._send("GET", f"/nodes{wanted}"))["nodes"])
            case "search":
                wanted = _wanted(sought)
                return _nodes([key], [hit["node"] for hit in (await self._send("POST", "/search", wanted))["hits"]])
            case _:
                return _nodes([key], (await self._send("POST", "/traverse", {"start_id": key, "depth": 0}))["nodes"])

    async def _read_edge(self, way: str, key: str) -> Looked:
        match way:
            case "walk":
                return _edges(EDGES, (await self._send("POST", "/traverse", {"start_id": ANCHOR, "depth": 1}))["edges"])
            case "edge":
                found = await self._send("GET", f"/edges/{ANCHOR}~{RELATION}~{key}", missing={"edge": None})
                return _edges([key], [found["edge"]] if found["edge"] else [])
            case _:
                return _edges(EDGES, (await self._send("GET", f"/nodes/{ANCHOR}/{way}"))["edges"])

    async def _change_by_cypher(self, key: str, step: RegisterStep) -> WriteAcknowledgement:
        name, part = ("e", "weight") if key in EDGES else ("n", "content")
        what = (
            f"SET {name}.{part} = $value" if step.kind == "set" else "DELETE e" if key in EDGES else "DETACH DELETE n"
        )
        value = float(step.value) if key in EDGES else _content(key, step.value)
        given = {"key": key, "value": value} if step.kind == "set" else {"key": key}
        query = f"{_EDGE if key in EDGES else _NODE} {what}"
        found = (await self._send("POST", "/cypher", {"query": query, "params": given, "mode": "write"}))["changes"]
        done = "updated" if step.kind == "set" else "deleted"
        return WriteAcknowledgement(found[f"nodes_{done}"] + found[f"edges_{done}"] == 1, found["sequence"])

    async def _send(self, method: str, path: str, body: Json | None = None, missing: Json | None = None) -> Json:
        reply = await self._http.request(method, path, json=body)
        if reply.status_code == 404 and missing is not None:
            return missing
        found = reply.json()
        if reply.status_code == 200 or found["type"].endswith(":conflict_manual"):
            return found
        problem = f"{method} {path}: {reply.status_code} {found['detail']}"
        raise (
            OutcomeUnknown(problem)
            if reply.status_code >= 500 or reply.status_code == 408
            else OperationRejected(problem)
        )


class McpRegisters(RegisterInterface):
    """MCP client; ``mode`` is the official client's name for the protocol revision."""

    NAME = "MCP"
    KINDS = ("inject",) * 3 + ("put",) * 5 + ("delete",) * 2
    NODE_LOOKS = ("entity", "entity", "walk", "list", "cypher", "search", "search")
    EDGE_LOOKS = ("relations", "walk", "cypher")

    def __init__(self, store: str, mode: ConnectMode) -> None:
        super().__init__(store)
        self._mode: ConnectMode = mode

    @override
    @asynccontextmanager
    async def visit(self, url: str) -> AsyncGenerator[None]:
        async with Client(f"{url}/mcp?answers=both", mode=self._mode, read_timeout_seconds=SECONDS) as self._client:
            yield

    @override
    async def write(self, key: str, step: RegisterStep, *, in_cypher: bool) -> WriteAcknowledgement:
        del in_cypher
        match step.kind:
            case "inject":
                return _injected(key, await self._call("inject_knowledge_graph", _batch(key, step.value)))
            case "put":
                return _put(await self._call("put_node", _version(key, step)))
            case _ if key in EDGES:
                edge = {"from": ANCHOR, "to": key, "relation_type": RELATION}
                return _deleted(await self._call("delete_graph_relation", edge))
            case _:
                return _deleted(await self._call("delete_graph_entity", {"id": key}))

    @override
    async def look(self, way: str, key: str, sought: SearchExpectation) -> Looked:
        if way == "cypher":
            return _rows(key, (await self._call("query_cypher", _question(key)))["rows"])
        return await (self._read_edge(way) if key in EDGES else self._read_node(way, key, sought))

    async def _read_node(self, way: str, key: str, sought: SearchExpectation) -> Looked:
        match way:
            case "entity":
                found = await self._read("get_entity", {"id": key}, missing={"node": None})
                return _nodes([key], [found["node"]] if found["node"] else [])
            case "list":
                wanted = {"types": [TYPE], "compact": False}
                return _nodes(NODES, (await self._read("list_entities", wanted))["nodes"])
            case "search":
                wanted = _wanted(sought)
                return _nodes([key], [hit["node"] for hit in (await self._read("search_knowledge", wanted))["hits"]])
            case _:
                return _nodes([key], (await self._read("traverse_knowledge_graph", {"start_id": key}))["nodes"])

    async def _read_edge(self, way: str) -> Looked:
        if way == "relations":
            return _edges(EDGES, (await self._read("list_relations", {"id": ANCHOR}))["edges"])
        return _edges(EDGES, (await self._read("traverse_knowledge_graph", {"start_id": ANCHOR}))["edges"])

    async def _read(self, tool: str, arguments: Json, missing: Json | None = None) -> Json:
        return await self._call(tool, {**arguments, "detail": True}, missing)

    async def _call(self, tool: str, arguments: Json, missing: Json | None = None) -> Json:
        result = await self._client.call_tool(tool, {"index": self.store, **arguments})
        found = result.structured_content
        if found is not None:
            return found
        text = _text(result)
        if missing is not None and "there is no node" in text:
            return missing
        raise OutcomeUnknown(f"{tool}: {text}")


def _text(result: CallToolResult) -> str:
    return " ".join(each.text for each in result.content if isinstance(each, TextContent))


def _batch(key: str, value: int) -> Json:
    if key in EDGES:
        return {"edges": [{"from": ANCHOR, "to": key, "relation_type": RELATION, "weight": float(value)}]}
    return {"nodes": [{"id": key, "type": TYPE, "content": _content(key, value)}]}


def _version(key: str, step: RegisterStep) -> Json:
    whole = {"lineage_id": key, "kind": TYPE, "content": _content(key, step.value)}
    return whole if step.based_on is None else whole | {"based_on_version": step.based_on}


def _wanted(sought: SearchExpectation) -> Json:
    return {"query": sought.words, "mode": "keyword", "limit": 5, "types": [TYPE], "at_least": sought.at_least}


def _content(key: str, value: int) -> str:
    return f"{key} holds {value}"


def _question(key: str) -> Json:
    found = f"{_EDGE} RETURN e.weight" if key in EDGES else f"{_NODE} RETURN n.content"
    name = "e" if key in EDGES else "n"
    return {"query": f"{found}, {name}.version, {name}.sequence", "params": {"key": key}}


def _injected(key: str, found: Json) -> WriteAcknowledgement:
    return WriteAcknowledgement(found.get("edges_created" if key in EDGES else "nodes_created") == 1, found["sequence"])


def _put(found: Json) -> WriteAcknowledgement:
    node = found["node"]
    # A write that became a conflicting head is reported as an error.
    beside = not found.get("ok", False)
    return WriteAcknowledgement((node["version"], beside), node.get("sequence") or found["sequence"])


def _deleted(found: Json) -> WriteAcknowledgement:
    return WriteAcknowledgement(found["existed"], found["sequence"])


def _nodes(keys: Iterable[str], found: Iterable[Mapping[str, Any]]) -> Looked:
    """Return the existing nodes of ``keys``; conflicting versions found by a search are ignored."""
    shown = {
        node["id"]: ((_value(node["content"]), node["version"]), node["sequence"])
        for node in found
        if node["id"] in NODES and "is_current" not in node
    }
    return {key: shown.get(key, (None, 0)) for key in keys}


def _edges(keys: Iterable[str], found: Iterable[Mapping[str, Any]]) -> Looked:
    shown = {edge["to"]: ((int(edge["weight"]), edge["version"]), edge["sequence"]) for edge in found}
    return {key: shown.get(key, (None, 0)) for key in keys}


def _rows(key: str, rows: list[list[Any]]) -> Looked:
    if not rows:
        return {key: (None, 0)}
    [[held, version, sequence]] = rows
    return {key: ((int(held) if key in EDGES else _value(held), version), sequence)}


def _value(content: str) -> int:
    return int(content.rpartition(" ")[2])
