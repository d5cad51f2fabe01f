"""``kgserve consolidate``, and files of the MCP memory server imported as memories."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kgserve.client import Client, Store
from tests.cli.running import ServerProcessHandle, kgserve

LINES = (
    {"type": "entity", "name": "Ann", "entityType": "person", "observations": ["drinks tea", "likes Rome", " "]},
    {"type": "entity", "name": "Bob", "entityType": "person", "observations": ["drinks tea"]},
    {"type": "relation", "from": "Ann", "to": "Bob", "relationType": "knows"},
    {"type": "entity", "name": "Acme", "entityType": "", "observations": []},
)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "memory.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return path


def contents(store: Store) -> dict[str, list[str]]:
    """Return the contents of memories by the entity they are about."""
    return {
        each.name: sorted(memory.content for memory in store.entity_memories(each.id).memories)
        for each in store.entities().entities
    }


def test_observations_become_memories_without_duplicates(server: ServerProcessHandle, written: Path) -> None:
    command = ("import", "imported", str(written), "--format", "memory-server", "--as-memories", "--server", server.url)
    done = kgserve(*command)
    assert (done.code, "observations[2] is blank" in done.err) == (1, True)
    with Client(server.url) as client:
        store = client.store("imported")
        assert contents(store) == {"Ann": ["drinks tea", "likes Rome"], "Bob": ["drinks tea"], "Acme": []}
        assert [each.entity_type for each in store.entities(name="ac").entities] == ["unknown"]
        assert [(each.source, each.target) for each in store.relations().relations] == [("Ann", "Bob")]
        sequence = store.settings().sequence
        hits = store.recall("Rome", mode="keyword", at_least=sequence, touch=False).hits
        assert [(hit.content, hit.entities[0].name) for hit in hits] == [("likes Rome", "Ann")]
        before = list(store.export())
        assert kgserve(*command).code == 1
        assert store.memory_stats().total_memories == 3
        assert len(list(store.export())) == len(before)


def test_invalid_memory_server_lines_are_reported_by_number(server: ServerProcessHandle, tmp_path: Path) -> None:
    path = tmp_path / "mixed.jsonl"
    path.write_text(f'{json.dumps(LINES[1])}\n{{"kind": "node", "id": "a", "type": "t"}}\n')
    done = kgserve("import", "mixed", str(path), "--as-memories", "--server", server.url)
    assert done.code == 1
    assert "mixed.jsonl line 2: must be a line of the memory server" in done.out + done.err
    path.write_text(f'{json.dumps(LINES[1])}\n{{"type": "thing", "name": "a"}}\n')
    for options in ((), ("--as-memories",)):
        done = kgserve("import", "mixed", str(path), *options, "--server", server.url)
        assert re.search(r'line 2: .*memory server, .*type.* "entity" or "relation"', done.out + done.err)
    refused = kgserve("import", "mixed", str(path), "--format", "csv", "--as-memories", "--server", server.url)
    assert refused.code == 2
    assert "--format memory-server" in refused.err


def test_consolidation_and_its_undo(server: ServerProcessHandle) -> None:
    with Client(server.url) as client:
        store = client.store("consolidated")
        for content in ("The shop opens at nine", "the shop opens at nine."):
            store.store_memory(content, dedup="off")
        store.recall("shop", at_least=store.settings().sequence)

        def said(*options: str) -> str:
            done = kgserve("consolidate", "consolidated", *options, "--server", server.url)
            assert done.code == 0, done.err
            return done.out

        assert "1 memory would be merged into 1" in said("--dry-run", "--no-guard")
        unchecked = kgserve("consolidate", "consolidated", "--dry-run", "--server", server.url)
        assert "Only the wording was compared" in unchecked.err
        assert store.memory_stats().total_memories == 2
        report = json.loads(said("--json"))
        assert store.memory_stats().total_memories == 1
        assert "1 memory was restored" in said("--undo", report["run"])
        assert store.memory_stats().total_memories == 2
        assert kgserve("consolidate", "consolidated", "--undo", "x", "--dry-run", "--server", server.url).code == 2
