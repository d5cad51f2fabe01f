from __future__ import annotations

from typing import Any

from tests.cli.running import ServerProcessHandle
from tests.server.mcp.talking import Mode, call, refusal, text_of

NODES: list[dict[str, Any]] = [
    {"id": "a", "type": "note", "content": "first note", "tags": ["status:open", "red"]},
    {"id": "b", "type": "note", "summary": "second", "tags": ["status:done", "red"]},
    {"id": "c", "type": "place"},
]


def test_describe_schema_lists_types_and_tags(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    call(server.url, mode, "inject_knowledge_graph", index=store, nodes=NODES)
    found = call(server.url, mode, "describe_schema", index=store)
    assert text_of(found) == (
        f'Schema of "{store}": 3 nodes\n'
        "Types:\n"
        "  note: 2\n"
        '    "first note"\n'
        '    "second"\n'
        "  place: 1\n"
        "Prefixes of tags:\n"
        "  status: 2 (done, open)\n"
        "Tags:\n"
        '  "red": 2\n'
        '  "status:done": 1\n'
        '  "status:open": 1'
    )
    assert found.structured_content["kinds"][0] == {"kind": "note", "count": 2, "examples": ["first note", "second"]}
    assert "more" not in found.structured_content
    listed = call(server.url, mode, "list_tags", index=store, prefix="status:", limit=1)
    assert listed.structured_content["tags"] == [{"tag": "status:done", "count": 1}]
    assert text_of(listed).startswith('1 tag starting with "status:"\n  "status:done": 1\nMore:')
    assert call(server.url, mode, "list_tags", index=store).structured_content["tags"][0] == {"tag": "red", "count": 2}


def test_large_schema_stays_within_the_size_limit(server: ServerProcessHandle, store: str) -> None:
    nodes = [{"id": f"n{n}", "type": f"{n:03}" + "t" * 400, "tags": [f"{n:03}" + "x" * 200 + ":y"]} for n in range(100)]
    call(server.url, "auto", "inject_knowledge_graph", index=store, nodes=nodes)
    found = call(server.url, "auto", "describe_schema", index=store)
    assert len(text_of(found)) <= 25_000
    assert 10 < len(found.structured_content["kinds"]) < 100
    assert "omitted" in found.structured_content["more"]
    listed = call(server.url, "auto", "list_tags", index=store)
    assert len(text_of(listed)) <= 25_000
    assert len(listed.structured_content["tags"]) == 100


def test_refusals(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    assert store in refusal(server.url, mode, "describe_schema", index=store)
    assert "limit" in refusal(server.url, mode, "list_tags", index=store, limit="many")
