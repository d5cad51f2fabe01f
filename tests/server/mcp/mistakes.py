"""Frequent mistakes of agents in tool calls: which are accepted, and which a second call corrects.

The second call follows the error message mechanically, line by line (`followed`).
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Literal, NamedTuple

import msgspec
from mcp import Client
from mcp.types import CallToolResult, TextContent

STORE = "mistakes"
GONE = object()
"""Marks an argument to omit."""

NODES = [
    {"id": "alice", "type": "person", "content": "Alice works at Acme", "tags": ["topic:login"]},
    {"id": "bob", "type": "person", "content": "Bob builds the login"},
    {"id": "acme", "type": "company", "content": "Acme makes locks"},
    {"id": "login", "type": "requirement", "content": "Log in with a key", "attributes": {"status": "open"}},
]
EDGES = [
    {"from": "alice", "to": "acme", "relation_type": "WORKS_AT"},
    {"from": "bob", "to": "acme", "relation_type": "WORKS_AT", "weight": 0.5},
    {"from": "alice", "to": "bob", "relation_type": "KNOWS"},
]
NODE = {"id": "carol", "type": "person", "content": "Carol is new"}
EDGE = {"from": "alice", "to": "acme", "relation_type": "OWNS"}
KNOWN_EDGE = {"from": "alice", "to": "acme", "relation_type": "WORKS_AT"}

RIGHT: dict[str, dict[str, Any]] = {
    "inject_knowledge_graph": {"nodes": [NODE], "edges": [EDGE]},
    "delete_graph_entity": {"id": "carol"},
    "delete_graph_relation": EDGE,
    "traverse_knowledge_graph": {"start_id": "alice"},
    "get_entity": {"id": "alice"},
    "list_entities": {"types": ["person"]},
    "list_relations": {"id": "alice"},
    "put_node": {"lineage_id": "dora", "kind": "person", "content": "Dora"},
    "put_subgraph": {"nodes": [{"lineage_id": "erik", "kind": "person"}]},
    "retire_entity": {"id": "bob"},
    "retire_relation": KNOWN_EDGE,
    "entity_history": {"id": "alice"},
    "revert_entity": {"id": "alice", "version": 1},
    "search_knowledge": {"query": "login", "mode": "keyword"},
    "search_batch": {"queries": [{"query": "login"}]},
    "get_context": {"query": "who builds the login"},
    "list_stores": {},
    "describe_store": {},
    "describe_schema": {},
    "list_tags": {},
    "query_cypher": {"query": "MATCH (e:Entity) RETURN e.id ORDER BY e.id"},
    "drop_store": {"index": "spare", "confirm": "spare"},
}
"""A correct call of each tool; each mistake is a change of it."""


class Mistake(NamedTuple):
    """Incorrect call of a tool."""

    tool: str
    words: str
    changes: dict[str, Any]

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the incorrect call."""
        wanted = deepcopy(RIGHT[self.tool]) | self.changes
        return {name: value for name, value in wanted.items() if value is not GONE}


def _mistakes(tool: str, *rows: tuple[str, dict[str, Any]]) -> list[Mistake]:
    return [Mistake(tool, words, changes) for words, changes in rows]


def _node(*without: str, **other: Any) -> dict[str, Any]:
    """Return the node of an inject with other field names."""
    return {"nodes": [{key: value for key, value in NODE.items() if key not in without} | other], "edges": GONE}


def _edge(*without: str, **other: Any) -> dict[str, Any]:
    return {"edges": [{key: value for key, value in EDGE.items() if key not in without} | other], "nodes": GONE}


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


MISTAKES: list[Mistake] = [
    *_mistakes(
        "inject_knowledge_graph",
        ("store for index", {"store": STORE}),
        ("nodes as JSON text", {"nodes": _json([NODE])}),
        ("edges as JSON text", {"edges": _json([EDGE])}),
        ("both as JSON text", {"nodes": _json([NODE]), "edges": _json([EDGE])}),
        ("one node without a list", {"nodes": NODE}),
        ("one edge without a list", {"edges": EDGE}),
        ("a node as JSON text in the list", {"nodes": [_json(NODE)]}),
        ("names in place of nodes", {"nodes": ["carol"], "edges": GONE}),
        ("entities and relations", {"nodes": GONE, "edges": GONE, "entities": [NODE], "relations": [EDGE]}),
        ("name for id", _node("id", name="carol")),
        ("kind for type", _node("type", kind="person")),
        ("entityType for type", _node("type", entityType="person")),
        ("a node without id", _node("id")),
        ("a number as id", _node(id=42)),
        ("metadata for attributes", _node(metadata={"a": 1})),
        ("properties for attributes", _node(properties={"a": 1})),
        ("attributes as JSON text", _node(attributes='{"a": 1}')),
        ("attributes as a list", _node(attributes=["a"])),
        ("a field of one's own", _node(age=30)),
        ("observations", _node(observations=["likes tea"])),
        ("two fields of one's own", _node(age=30, city="Rome")),
        ("one tag without a list", _node(tags="new")),
        ("tags as JSON text", _node(tags='["new", "vip"]')),
        ("tags with commas", _node(tags="new, vip")),
        ("content that is an object", _node(content={"text": "Carol"})),
        ("a date without time", _node(valid_from="2026-01-16")),
        ("a time without zone", _node(freshness_at="2026-11-16T10:00:00")),
        ("a time in words", _node(valid_to="next year")),
        ("source and target", _edge("from", "to", source="alice", target="acme")),
        ("type for relation_type", _edge("relation_type", type="OWNS")),
        ("relationType", _edge("relation_type", relationType="OWNS")),
        ("label for relation_type", _edge("relation_type", label="OWNS")),
        ("an edge without relation_type", _edge("relation_type")),
        ("a weight as text", _edge(weight="0.5")),
        ("a weight in words", _edge(weight="high")),
        (
            "three faults at once",
            {"nodes": [{"type": "person", "colour": "red"}], "edges": [EDGE | {"weight": "high"}]},
        ),
    ),
    *_mistakes(
        "delete_graph_entity",
        ("name for id", {"id": GONE, "name": "carol"}),
        ("entity_id for id", {"id": GONE, "entity_id": "carol"}),
        ("a list of one id", {"id": ["carol"]}),
        ("no id", {"id": GONE}),
    ),
    *_mistakes(
        "delete_graph_relation",
        ("source and target", {"from": GONE, "to": GONE, "source": "alice", "target": "acme"}),
        ("type for relation_type", {"relation_type": GONE, "type": "OWNS"}),
        ("no relation_type", {"relation_type": GONE}),
    ),
    *_mistakes(
        "traverse_knowledge_graph",
        ("id for start_id", {"start_id": GONE, "id": "alice"}),
        ("start_node for start_id", {"start_id": GONE, "start_node": "alice"}),
        ("startId for start_id", {"start_id": GONE, "startId": "alice"}),
        ("depth as text", {"depth": "2"}),
        ("depth 20", {"depth": 20}),
        ("max_depth for depth", {"max_depth": 2}),
        ("direction out", {"direction": "out"}),
        ("direction OUTGOING", {"direction": "OUTGOING"}),
        ("direction any", {"direction": "any"}),
        ("one relation type without a list", {"relation_types": "KNOWS"}),
        ("relation_type for relation_types", {"relation_type": "KNOWS"}),
        ("relation types as JSON text", {"relation_types": '["KNOWS"]'}),
        ("limit for max_nodes", {"limit": 5}),
        ("a date without time", {"valid_at": "2026-11-16"}),
        ("as_of now", {"as_of": "now"}),
        ("a store that is not there", {"index": "mistake"}),
        ("an unknown choice", {"include_content": True}),
    ),
    *_mistakes(
        "get_entity",
        ("name for id", {"id": GONE, "name": "alice"}),
        ("node_id for id", {"id": GONE, "node_id": "alice"}),
        ("version as text", {"version": "1"}),
        ("store for index", {"store": STORE}),
        ("a store that is not there", {"index": "default"}),
        ("valid_at with a time without seconds", {"valid_at": "2026-11-16T10:00"}),
    ),
    *_mistakes(
        "list_entities",
        ("one type without a list", {"types": "person"}),
        ("type for types", {"types": GONE, "type": "person"}),
        ("kind for types", {"types": GONE, "kind": "person"}),
        ("tag for tags", {"tag": "topic:login"}),
        ("limit as text", {"limit": "10"}),
        ("limit 5000", {"limit": 5000}),
        ("compact as text", {"compact": "false"}),
        ("page", {"page": 1}),
    ),
    *_mistakes(
        "list_relations",
        ("name for id", {"id": GONE, "name": "alice"}),
        ("direction both", {"direction": "both"}),
        ("relation_type for relation_types", {"relation_type": "KNOWS"}),
    ),
    *_mistakes(
        "put_node",
        ("id, type, attributes", {"lineage_id": GONE, "kind": GONE, "id": "dora", "type": "person", "attributes": {}}),
        ("name for lineage_id", {"lineage_id": GONE, "name": "dora"}),
        ("no kind", {"kind": GONE}),
        ("metadata as JSON text", {"metadata": '{"a": 1}'}),
        ("based_on_version as text", {"based_on_version": "1"}),
        ("a date without time", {"valid_from": "2026-01-16"}),
    ),
    *_mistakes(
        "put_subgraph",
        ("nodes as JSON text", {"nodes": '[{"lineage_id": "erik", "kind": "person"}]'}),
        ("id and type", {"nodes": [{"id": "erik", "type": "person"}]}),
        ("entities for nodes", {"nodes": GONE, "entities": [{"lineage_id": "erik", "kind": "person"}]}),
    ),
    *_mistakes(
        "retire_entity",
        ("a date without time", {"valid_to": "2026-11-16"}),
        ("valid_until for valid_to", {"valid_until": "2026-11-16T00:00:00Z"}),
        ("valid_to now", {"valid_to": "now"}),
    ),
    *_mistakes(
        "retire_relation",
        ("source and target", {"from": GONE, "to": GONE, "source": "alice", "target": "acme"}),
        ("no relation_type", {"relation_type": GONE}),
    ),
    *_mistakes("entity_history", ("name for id", {"id": GONE, "name": "alice"}), ("limit as text", {"limit": "5"})),
    *_mistakes(
        "revert_entity",
        ("version as text", {"version": "1"}),
        ("to_version for version", {"version": GONE, "to_version": 1}),
    ),
    *_mistakes(
        "search_knowledge",
        ("q for query", {"query": GONE, "q": "login"}),
        ("text for query", {"query": GONE, "text": "login"}),
        ("words as a list", {"query": ["login"]}),
        ("mode Keyword", {"mode": "Keyword"}),
        ("mode vector", {"mode": "vector"}),
        ("limit as text", {"limit": "5"}),
        ("limit 1000", {"limit": 1000}),
        ("limit 0", {"limit": 0}),
        ("top_k for limit", {"top_k": 5}),
        ("type for types", {"type": "person"}),
        ("types with commas", {"types": "person, company"}),
        ("a list in the words of Python", {"types": "['person']"}),
    ),
    *_mistakes(
        "search_batch",
        ("texts for queries", {"queries": ["login", "locks"]}),
        ("queries as JSON text", {"queries": '[{"query": "login"}]'}),
        ("one query without a list", {"queries": {"query": "login"}}),
        ("query for queries", {"queries": GONE, "query": "login"}),
    ),
    *_mistakes(
        "get_context",
        ("question for query", {"query": GONE, "question": "who builds the login"}),
        ("budget as text", {"budget": "500"}),
        ("max_tokens for budget", {"max_tokens": 500}),
        ("budget 100000", {"budget": 100_000}),
    ),
    *_mistakes("list_stores", ("a store given", {"index": STORE}), ("limit as text", {"limit": "5"})),
    *_mistakes(
        "describe_store",
        ("store for index", {"store": STORE}),
        ("name for index", {"name": STORE}),
        ("a store that is not there", {"index": "mistakse"}),
    ),
    *_mistakes("describe_schema", ("a type given", {"type": "person"})),
    *_mistakes("list_tags", ("tag_prefix for prefix", {"tag_prefix": "topic"}), ("limit as text", {"limit": "5"})),
    *_mistakes(
        "query_cypher",
        ("a type as label", {"query": "MATCH (p:Person) RETURN p.id"}),
        ("a relation type as label", {"query": "MATCH (a:Entity)-[:KNOWS]->(b:Entity) RETURN a.id, b.id"}),
        ("both, with a name", {"query": "MATCH (a:Person)-[r:KNOWS]->(b:Person) WHERE a.name = 'alice' RETURN b.name"}),
        ("an unknown property", {"query": "MATCH (e:Entity) RETURN e.name"}),
        ("a property in a pattern", {"query": "MATCH (e:Entity {name: 'alice'}) RETURN e.content"}),
        ("cypher for query", {"query": GONE, "cypher": "MATCH (e:Entity) RETURN e.id"}),
        ("params as JSON text", {"query": "MATCH (e:Entity {id: $id}) RETURN e.type", "params": '{"id": "alice"}'}),
        ("parameters for params", {"query": "MATCH (e:Entity {id: $id}) RETURN e.type", "parameters": {"id": "alice"}}),
        ("limit for max_rows", {"limit": 5}),
    ),
    *_mistakes("drop_store", ("store for index", {"index": GONE, "store": "spare"}), ("no confirm", {"confirm": GONE})),
]

UNDOING = {"delete_graph_entity", "delete_graph_relation", "revert_entity", "drop_store"}
"""Tools that delete data that other calls need."""

Outcome = Literal["taken", "one more call", "no"]
Call = Callable[[str, dict[str, Any]], Awaitable[CallToolResult]]


class MistakeOutcome(NamedTuple):
    """Result of a mistake: the first answer, and whether that or the second call succeeded."""

    mistake: Mistake
    answer: str
    outcome: Outcome


async def prepared(call: Call) -> None:
    """Create the stores that the mistakes use."""
    await call("inject_knowledge_graph", {"nodes": NODES, "edges": EDGES})
    await call("inject_knowledge_graph", {"index": "spare", "nodes": NODES[:1]})


async def tried(call: Call, mistake: Mistake) -> MistakeOutcome:
    """Make a mistake; if it is refused, repeat the call as the error message suggests."""
    first = await call(mistake.tool, mistake.arguments)
    answer = text_of(first)
    if not first.is_error:
        return MistakeOutcome(mistake, _word(answer), "taken")
    again = await call(mistake.tool, followed(mistake.arguments, answer))
    return MistakeOutcome(mistake, answer, "no" if again.is_error else "one more call")


def text_of(result: CallToolResult) -> str:
    """Return the text of an answer."""
    return "\n".join(each.text for each in result.content if isinstance(each, TextContent))


def _word(answer: str) -> str:
    """Return the notes about corrected arguments, or a placeholder."""
    notes = [line for line in answer.splitlines() if line.startswith("Note: ")]
    return "; ".join(notes) or "an answer"


def followed(arguments: Mapping[str, Any], answer: str) -> dict[str, Any]:
    """Return the arguments, changed as the lines of an error message suggest."""
    changed = deepcopy(dict(arguments))
    for line in answer.splitlines():
        _follow(changed, line)
    return changed


def _follow(arguments: dict[str, Any], line: str) -> None:
    if "there is no store" in line or "has no default store" in line:
        if name := re.search(r'(?:there are|returns the stores:) "([^"]+)"', line):
            arguments["index"] = name[1]
        return
    if "must repeat the name of the store" in line:
        arguments["confirm"] = arguments.get("index")
        return
    path, _, said = line.partition(": ")
    for better, worse in re.findall(r"write (\S+) for (\S+?)(?= and |[;,]|$)", said):
        arguments["query"] = _rewritten(arguments["query"], worse, better)
    if found := _place(arguments, path):
        _mend(*found, said)


def _rewritten(query: str, worse: str, better: str) -> str:
    """Return a statement with a label or property replaced."""
    if worse.startswith(":"):
        return query.replace(worse, better)
    return re.sub(rf"(?<=\.){worse}\b|\b{worse}(?=\s*:)", better, query)


def _place(arguments: dict[str, Any], path: str) -> tuple[Any, str | int] | None:
    """Return the object or list at the end of a path, and the last name or index; JSON texts on the way are decoded."""
    *way, last = [int(each) if each.isdigit() else each for each in re.findall(r"[^.\[\]]+", path)] or [""]
    here: Any = arguments
    for step in way:
        try:
            if isinstance(here[step], str):
                here[step] = msgspec.json.decode(here[step])
            here = here[step]
        except (KeyError, IndexError, TypeError, msgspec.DecodeError):
            return None
    return here, last


def _mend(here: Any, name: str | int, said: str) -> None:
    if meant := re.search(r"did you mean `(\w+)`", said):
        here[meant[1]] = here.pop(name)
    elif own := re.search(r"put custom fields into `(\w+)`", said):
        here.setdefault(own[1], {})[name] = here.pop(name)
    elif said.startswith("unknown field") or "omit it" in said:
        here.pop(name)
    elif (choice := re.search(r'did you mean ("[^"]*")', said)) or (
        choice := re.search(r'is not one of ("[^"]*")', said)
    ):
        here[name] = msgspec.json.decode(choice[1])
    elif bound := re.search(r"must be at (?:most|least) (\d+)", said):
        here[name] = int(bound[1])
    elif example := re.search(r"for example (.*)", said):
        here[name] = _first_json(example[1])


def _first_json(text: str) -> Any:
    """Return the JSON value at the beginning of a text."""
    for end in range(len(text), 0, -1):
        try:
            return msgspec.json.decode(text[:end])
        except msgspec.DecodeError:
            continue
    return text


async def made(url: str, mistakes: Sequence[Mistake] = MISTAKES) -> list[MistakeOutcome]:
    """Make mistakes at a server, over a connection with the default store `STORE`."""
    async with Client(f"{url}/mcp?store={STORE}") as client:

        async def call(tool: str, arguments: dict[str, Any]) -> CallToolResult:
            return await client.call_tool(tool, arguments)

        done: list[MistakeOutcome] = []
        await prepared(call)
        for mistake in mistakes:
            done.append(await tried(call, mistake))
            if mistake.tool in UNDOING:
                await prepared(call)
        return done
