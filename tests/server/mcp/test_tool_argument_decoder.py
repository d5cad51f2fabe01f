"""Unambiguous mistakes in arguments are corrected with a note; other errors name every fault and a correction."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec
import pytest

from kgserve.errors import InvalidInput, NoStore
from kgserve.server.mcp.cypher_tools import QueryCypherArguments
from kgserve.server.mcp.entity_read_tools import GetEntityArguments, ListEntitiesArguments, TraverseArguments
from kgserve.server.mcp.entity_version_write_tools import PutNodeArguments
from kgserve.server.mcp.entity_write_tools import InjectKnowledgeGraphArguments
from kgserve.server.mcp.memory_tools import RecallArguments
from kgserve.server.mcp.search_tools import GetContextArguments, SearchBatchArguments, SearchKnowledgeArguments
from kgserve.server.mcp.store_tools import DescribeStoreArguments
from kgserve.server.mcp.tool_argument_decoder import (
    decode_tool_arguments,
    find_tool_store_argument,
    format_mcp_tool_error,
    format_name_suggestions,
    resolve_tool_call_store,
)
from kgserve.server.mcp.tool_replies import ToolReply
from kgserve.server.mcp.toolsets import TOOLS
from tests.cli.running import ServerProcessHandle
from tests.server.mcp.mistakes import MISTAKES, RIGHT, made
from tests.server.mcp.talking import Mode, call, refusal, text_of

NODE = {"id": "a", "type": "t"}
EDGE = {"from": "a", "to": "b", "relation_type": "r"}


def read(into: type[msgspec.Struct], **given: Any) -> tuple[Any, list[str]]:
    notes: list[str] = []
    return msgspec.to_builtins(decode_tool_arguments(given, into, notes)), notes


def faults(into: type[msgspec.Struct], **given: Any) -> list[str]:
    with pytest.raises(InvalidInput) as refused:
        decode_tool_arguments(given, into, [])
    return format_mcp_tool_error(refused.value).splitlines()


@pytest.mark.parametrize(
    ("into", "sent", "meant"),
    [
        (GetEntityArguments, {"store": "s", "name": "a"}, {"index": "s", "id": "a"}),
        (GetEntityArguments, {"Index": "s", "nodeId": "a"}, {"index": "s", "id": "a"}),
        (GetEntityArguments, {"id": 42, "version": "3"}, {"id": "42", "version": 3}),
        (GetEntityArguments, {"id": "a", "version": 3.0}, {"id": "a", "version": 3}),
        (GetEntityArguments, {"id": "a", "as_of": "now"}, {"id": "a"}),
        (
            GetEntityArguments,
            {"id": "a", "version": "", "detail": "", "content_offset": "", "direction": ""},
            {"id": "a"},
        ),
        (ListEntitiesArguments, {"types": "", "attributes": "", "limit": "", "ids": "", "count": ""}, {}),
        (
            InjectKnowledgeGraphArguments,
            {"nodes": [NODE | {"attributes": "", "tags": ""}], "edges": ""},
            {"nodes": [NODE]},
        ),
        (InjectKnowledgeGraphArguments, {"edges": [EDGE | {"weight": "", "ordinal": ""}]}, {"edges": [EDGE]}),
        (GetEntityArguments, {"id": "a", "as_of": "2026-11-16T10:30:00"}, {"id": "a", "as_of": "2026-11-16T10:30:00Z"}),
        (RecallArguments, {"query": "q", "after": "2026-11-16"}, {"query": "q", "after": "2026-11-16T00:00:00Z"}),
        (
            RecallArguments,
            {"query": "q", "before_date": "2026-11-16T10:30:00", "memory_types": ["fact"], "entity_name": "Ann"},
            {"query": "q", "before": "2026-11-16T10:30:00Z", "types": ["fact"], "entity": "Ann"},
        ),
        (GetEntityArguments, {"id": "a", "valid_at": "2026-11-16"}, {"id": "a", "valid_at": "2026-11-16T00:00:00Z"}),
        (
            GetEntityArguments,
            {"id": "a", "valid_at": "2026-11-16 10:30+0200"},
            {"id": "a", "valid_at": "2026-11-16T10:30:00+02:00"},
        ),
        (SearchKnowledgeArguments, {"query": "q", "start_id": ""}, {"query": "q"}),
        (TraverseArguments, {"id": "a", "direction": "BOTH"}, {"start_id": "a", "direction": "both"}),
        (TraverseArguments, {"start_id": "a", "relation_type": "r"}, {"start_id": "a", "relation_types": ["r"]}),
        (SearchKnowledgeArguments, {"query": "q", "types": '["t"]'}, {"query": "q", "types": ["t"]}),
        (
            SearchKnowledgeArguments,
            {"query": "q", "type": "t", "top_k": "7"},
            {"query": "q", "types": ["t"], "limit": 7},
        ),
        (SearchBatchArguments, {"queries": ["q", "r"]}, {"queries": [{"query": "q"}, {"query": "r"}]}),
        (ListEntitiesArguments, {"compact": "False"}, {"compact": False}),
        (InjectKnowledgeGraphArguments, {"nodes": '[{"name": "a", "kind": "t"}]'}, {"nodes": [NODE]}),
        (
            InjectKnowledgeGraphArguments,
            {"nodes": NODE, "edges": ['{"source": "a", "target": "b", "type": "r"}']},
            {"nodes": [NODE], "edges": [EDGE]},
        ),
        (InjectKnowledgeGraphArguments, {"entities": [NODE], "relations": [EDGE]}, {"nodes": [NODE], "edges": [EDGE]}),
        (InjectKnowledgeGraphArguments, {"edges": [EDGE | {"weight": "0.5"}]}, {"edges": [EDGE | {"weight": 0.5}]}),
        (
            InjectKnowledgeGraphArguments,
            {"nodes": [NODE | {"valid_from": "2026-11-16"}]},
            {"nodes": [NODE | {"valid_from": "2026-11-16T00:00:00Z"}]},
        ),
        (
            InjectKnowledgeGraphArguments,
            {"nodes": [NODE | {"attributes": '{"x": [1]}'}]},
            {"nodes": [NODE | {"attributes": {"x": [1]}}]},
        ),
        (PutNodeArguments, {"name": "a", "Type": "t", "metadata": {}}, {"id": "a", "type": "t", "metadata": {}}),
        (
            QueryCypherArguments,
            {"query": "q", "params": '{"x": 1}', "limit": 5},
            {"query": "q", "params": {"x": 1}, "max_rows": 5},
        ),
    ],
)
def test_unambiguous_mistakes_are_corrected_with_a_note(
    into: type[msgspec.Struct], sent: dict[str, Any], meant: dict[str, Any]
) -> None:
    taken, notes = read(into, **sent)
    assert (taken, []) == read(into, **meant)
    assert notes
    assert all(re.match(r"[\w.\[\]]+: ", note) for note in notes)


@pytest.mark.parametrize("tool", RIGHT)
def test_correct_arguments_get_no_note(tool: str) -> None:
    arguments = {"index": "s"} | RIGHT[tool] if tool != "list_stores" else {}
    assert read(TOOLS[tool].arguments, **arguments)[1] == []


@pytest.mark.parametrize(
    ("into", "sent", "said"),
    [
        (RecallArguments, {"query": "q", "after": "last week"}, "after: "),
        (InjectKnowledgeGraphArguments, {"nodes": [{"id": ""}]}, "nodes[0].id: must not be empty"),
        (
            GetEntityArguments,
            {"id": "a", "name": "b"},
            "name: is an alias of `id`, which has a different value; omit it",
        ),
        (
            GetEntityArguments,
            {"id": "a", "verzion": 1},
            "verzion: unknown field (did you mean `version`?); allowed fields: ",
        ),
        (GetEntityArguments, {}, 'id: is required; for example "alice"'),
        (GetEntityArguments, {"id": ["a"]}, 'id: expected text, got a list; for example "a"'),
        (
            GetEntityArguments,
            {"id": "a", "valid_at": "2026-02-30"},
            'valid_at: "2026-02-30" is not an RFC 3339 time; for ',
        ),
        (
            GetEntityArguments,
            {"id": "a", "valid_at": 1763251200},
            "valid_at: expected text, got 1763251200; for example",
        ),
        (
            GetEntityArguments,
            {"id": "a", "version": "latest"},
            'version: expected a whole number, got "latest"; for example 1',
        ),
        (TraverseArguments, {"start_id": "a", "depth": 11}, "depth: must be at most 10"),
        (
            TraverseArguments,
            {"start_id": "a", "direction": "out"},
            'direction: "out" is not one of "both", "incoming", "outgoing"; did you mean "outgoing"?',
        ),
        (TraverseArguments, {"start_id": "a", "type": "t"}, "type: unknown field"),
        (
            SearchKnowledgeArguments,
            {"query": "q", "types": "a, b"},
            'types: expected a list, got "a, b"; for example ["a", "b"]',
        ),
        (GetContextArguments, {"query": ""}, "query: must not be empty"),
        (SearchKnowledgeArguments, {"query": "q", "id": "a"}, "id: unknown field"),
        (ListEntitiesArguments, {"compact": "yes"}, 'compact: expected true or false, got "yes"; for example true'),
        (
            InjectKnowledgeGraphArguments,
            {"nodes": ["a"]},
            'nodes[0]: expected an object, got "a"; for example {"id": "alice", "type": "person"}',
        ),
        (
            InjectKnowledgeGraphArguments,
            {"nodes": [NODE | {"age": 3}]},
            'nodes[0].age: unknown field (put custom fields into `attributes`: {"age": 3})',
        ),
        (InjectKnowledgeGraphArguments, {"nodes": '[{"id": 1'}, "nodes: expected a list, got"),
        (DescribeStoreArguments, {"name": "s"}, "name: unknown field (did you mean `index`?)"),
    ],
)
def test_ambiguous_arguments_are_refused_with_a_suggestion(
    into: type[msgspec.Struct], sent: dict[str, Any], said: str
) -> None:
    [line] = faults(into, **sent)
    assert line.startswith(said)


def test_every_fault_is_listed_and_equal_ones_once() -> None:
    nodes = [{"type": "t", "colour": "red"}, *({"id": f"n{number}", "tags": 5} for number in range(7))]
    found = faults(InjectKnowledgeGraphArguments, nodes=nodes, edges=[EDGE | {"weight": "high"}], indexx="s")
    assert [line.partition(": ")[0] for line in found] == [
        *("indexx", "nodes[0].colour", "nodes[0].id", "nodes[1].tags", "edges[0].weight")
    ]
    assert found[3].endswith("(and 6 more like it)")


def test_faults_and_notes_are_bounded() -> None:
    fields = [{f"field_{number}": number} for number in range(10_000)]
    assert len(faults(InjectKnowledgeGraphArguments, nodes=fields)) <= 20
    _, notes = read(
        InjectKnowledgeGraphArguments, nodes=[{"name": f"n{number}", "kind": "t"} for number in range(10_000)]
    )
    assert notes == [
        "nodes[0].kind: used as `type` (and 9,999 more like it)",
        "nodes[0].name: used as `id` (and 9,999 more like it)",
    ]


def test_json_text_in_arguments_must_be_valid_json() -> None:
    assert faults(InjectKnowledgeGraphArguments, nodes='[{"id": "a", "attributes": {"x": NaN}}]')
    assert faults(InjectKnowledgeGraphArguments, nodes='[{"id": "\\ud800"}]')
    assert faults(InjectKnowledgeGraphArguments, nodes="[" * 100_000)


def test_similar_store_names_are_listed_first_up_to_a_limit() -> None:
    names = [f"store-{number:02}" for number in range(30)] + ["project"]
    said = format_mcp_tool_error(NoStore("projekt"), lambda: names)
    assert said.startswith("there is no store 'projekt'; there are \"project\", ")
    assert said.endswith(" and 21 more")
    assert format_mcp_tool_error(NoStore("a")) == "there is no store 'a', nor any other"
    with pytest.raises(InvalidInput, match='list_stores returns the stores: "project"'):
        resolve_tool_call_store(msgspec.UNSET, None, lambda: ["project"])
    assert format_name_suggestions("", []) == ""


def test_the_audited_store_is_the_resolved_one() -> None:
    assert [
        find_tool_store_argument(given) for given in ({"index": "a"}, {"store": "a"}, {"Store": "a"}, {"name": "a"}, {})
    ] == [*("a", "a", "a", None, None)]


def test_notes_are_in_text_and_structured_content() -> None:
    text, values = ToolReply('Done in "s".', {"ok": True}).said("s", ["limit: taken"])
    assert text == 'Done in "s".\nNote: limit: taken'
    assert values == {"store": "s", "ok": True, "notes": ["limit: taken"]}


def test_following_the_error_message_corrects_the_call(server: ServerProcessHandle) -> None:
    done = asyncio.run(made(server.url, MISTAKES[::7]))
    assert [each for each in done if each.outcome == "no"] == []
    assert {each.outcome for each in done} == {"taken", "one more call"}


def test_errors_list_stores_and_answers_list_corrections(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    call(server.url, mode, "inject_knowledge_graph", store=store, nodes=NODE)
    found = call(server.url, mode, "get_entity", index=store, name="a")
    assert text_of(found).endswith("\nNote: name: used as `id`")
    assert found.structured_content["notes"] == ["name: used as `id`"]
    assert f'there are "{store}"' in refusal(server.url, mode, "get_entity", index=f"{store}x", id="a")


def test_cypher_errors_name_the_labels_of_this_schema(server: ServerProcessHandle, store: str) -> None:
    call(server.url, "auto", "inject_knowledge_graph", index=store, nodes=[NODE])
    found = call(server.url, "auto", "query_cypher", index=store, query="MATCH (p:Person) WHERE p.age > 3 RETURN p.age")
    assert found.structured_content["rows"] == []
    query = "MATCH (:Entity)<--(p:Person)-[:KNOWS]->(b) WHERE p.title = 'x.y' RETURN list_extract([p.title], 1)"
    said = refusal(server.url, "auto", "query_cypher", index=store, query=query)
    for instead in (
        "replace :Person by :Entity",
        "replace :KNOWS by :RELATES_TO",
        "write id for title",
        "nodes have id, ",
    ):
        assert instead in said
