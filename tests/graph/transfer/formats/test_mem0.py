"""mem0: its memories become memories, and memories become a file that mem0's `add` takes."""

from __future__ import annotations

from codecs import BOM_UTF8
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from kgserve.errors import InvalidInput
from kgserve.graph.transfer.formats.mem0_file import read_mem0_memories, write_mem0_file
from kgserve.graph.transfer.formats.ndjson_exchange_lines import NdjsonExchangeLine
from tests.cli.running import kgserve
from tests.server.http.serving import RunningServer, accepted

# As mem0 2.2 answers `get_all`.
AISLE = {
    "id": "0b1f9d0e-2f43-4a52-b9b6-3a3f0c1c9f01",
    "memory": "Prefers aisle seats",
    "hash": "b9f7b9",
    "created_at": "2025-03-01T17:00:00.000000Z",
    "updated_at": "2025-03-02T17:00:00.000000Z",
    "user_id": "alice",
    "agent_id": "bot",
    "role": "user",
    "metadata": {"category": "travel", "nested": {"list": [1, None]}},
}
NUTS = {"id": "m-2", "memory": "Is allergic to nuts", "user_id": "alice", "run_id": "trip", "hash": "1"}
TRIAL = {
    "id": "m-3",
    "memory": "Tries kgserve",
    "user_id": "bob",
    "expiration_date": "2027-01-31",
    "metadata": None,
}

LOST_FIELDS = {"hash", "updated_at"}
"""Fields of mem0 that kgserve does not store."""


def run(server: RunningServer, *arguments: object, code: int = 0) -> str:
    done = kgserve(*arguments, "--server", server.url)
    assert done.code == code, done.err
    return done.out + done.err


def read_export(path: Path) -> list[dict[str, Any]]:
    return msgspec.json.decode(path.read_bytes())["results"]


def lines_of(server: RunningServer, store: str) -> list[dict[str, Any]]:
    """Return the rows of a store without versions and times of the server."""
    found = [
        msgspec.json.decode(line) for line in httpx.get(f"{server.url}/api/memory/{store}/export").text.splitlines()
    ]
    for line in found:
        if line["kind"] == "edge":
            del line["attributes"]
        elif "confidence" not in line:
            del line["created_at"], line["updated_at"]
        line.pop("version", None)
    return sorted((line for line in found if line["kind"] != "store"), key=msgspec.json.encode)


def test_memories_of_mem0_come_and_go_unchanged(served: RunningServer, store: str, tmp_path: Path) -> None:
    source, out = tmp_path / "mem0.json", tmp_path / "out.json"
    source.write_bytes(msgspec.json.encode({"results": [AISLE, NUTS, TRIAL]}))
    for words in ("7 created, 0 updated, 0 unchanged", "0 created, 0 updated, 7 unchanged"):
        assert f"nodes: 7 sent, {words}" in run(served, "import", store, source, "--format", "mem0")
    found = httpx.get(f"{served.url}/api/memories", params={"store": store, "entity": "alice"}).json()["memories"]
    assert {each["content"] for each in found} == {"Prefers aisle seats", "Is allergic to nuts"}
    run(served, "export", store, "-o", out, "--format", "mem0")
    written = {each["id"]: each for each in read_export(out)}
    for given in (AISLE, NUTS, TRIAL):
        assert {"metadata": None} | {name: each for name, each in given.items() if name not in LOST_FIELDS} == {
            name: each
            for name, each in written[given["id"]].items()
            if name in {*given, "metadata"} and name not in LOST_FIELDS
        }
    before = lines_of(served, store)
    assert "7 sent, 0 created, 0 updated, 7 unchanged" in run(served, "import", store, out, "--format", "mem0")
    assert lines_of(served, store) == before


def test_old_memories_of_mem0_have_not_faded(served: RunningServer, store: str, tmp_path: Path) -> None:
    (tmp_path / "mem0.json").write_bytes(msgspec.json.encode({"results": [AISLE]}))
    run(served, "import", store, tmp_path / "mem0.json", "--format", "mem0")
    asked = {"store": store, "query": "aisle seats", "mode": "keyword", "at_least": 1}
    [hit] = httpx.get(f"{served.url}/api/v1/recall", params=asked).raise_for_status().json()
    assert (hit["confidence"], hit["valid_from"]) == (1.0, AISLE["created_at"])


def test_an_export_is_imported_to_equal_memories(served: RunningServer, store: str, tmp_path: Path) -> None:
    def retain(**body: Any) -> Any:
        return accepted(httpx.post(f"{served.url}/api/v1/retain", params={"store": store}, json=body))

    retain(content="Kate works at Acme.", entity_id="job", entities=[{"name": "Kate", "entity_type": "person"}])
    retain(content="Kate works at Initech.", entity_id="job", source="chat", valid_from="2024-01-01T00:00:00Z")
    retain(
        content="Both like tea.",
        entities=[{"name": "alice", "entity_type": "user", "relevance": 0.5}, {"name": "bob", "entity_type": "user"}],
        tags=["drinks"],
        metadata={"kgserve": {"odd": 1}, "role": 3},
        importance=0.9,
    )
    out, copy = tmp_path / "out.json", f"{store}-copy"
    run(served, "export", store, "-o", out, "--format", "mem0")
    job, tea = read_export(out)
    assert (job["memory"], "user_id" in job, tea["user_id"]) == ("Kate works at Initech.", False, "alice")
    run(served, "import", copy, out, "--format", "mem0")
    lines = lines_of(served, store)
    former = {line["id"] for line in lines if "ended" in line}
    kept = [line for line in lines if former.isdisjoint((line.get("id"), line.get("from")))]
    assert (len(former), lines_of(served, copy)) == (1, kept)
    again = tmp_path / "again.json"
    run(served, "export", copy, "-o", again, "--format", "mem0")
    assert sorted(map(str, read_export(again))) == sorted(map(str, read_export(out)))


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ("text", "Expected `object`, got `str`"),
        ({"id": "a"}, "memory: "),
        ({"id": "a", "memory": " "}, "memory: must not be blank"),
        ({"id": 3, "memory": "x"}, "id: Expected `str | null`, got `int`"),
        ({"memory": "x", "metadata": []}, "metadata: Expected `object | null`, got `array`"),
        ({"memory": "x", "metadata": {"kgserve": {"about": [{}]}}}, "metadata.kgserve.about[0].id: "),
        ({"memory": "x", "expiration_date": "soon"}, "expiration_date: "),
        (
            {"memory": "x", "role": "user", "metadata": {"role": "assistant"}},
            "role: is 'user', but 'assistant' in `metadata`",
        ),
    ],
)
def test_a_wrong_memory_is_reported_with_its_number(
    served: RunningServer, store: str, tmp_path: Path, item: Any, words: str
) -> None:
    (tmp_path / "mem0.json").write_bytes(msgspec.json.encode([{"memory": "fine"}, item]))
    said = run(served, "import", store, tmp_path / "mem0.json", "--format", "mem0", code=1)
    assert f"mem0.json row 2: {words}" in said
    assert "nodes: 1 sent, 1 created" in said


def test_relations_become_edges_between_entities(served: RunningServer, store: str, tmp_path: Path) -> None:
    source = tmp_path / "mem0.json"
    relations: list[Any] = [
        {"source": "alice", "relationship": "likes", "target": "tea"},
        {"source": "tea", "relationship": "grows_in", "destination": "assam"},
        {"source": "tea", "relationship": "grows_in"},
        {"source": "tea"},
        "text",
    ]
    source.write_bytes(BOM_UTF8 + msgspec.json.encode({"results": [NUTS], "relations": relations}))
    said = run(served, "import", store, source, "--format", "mem0", code=1)
    assert "mem0.json row 4: relations: source, relationship and target must not be blank" in said
    assert "mem0.json row 5: relations: " in said
    assert "mem0.json row 6: relations: " in said
    edges = [line for line in lines_of(served, store) if line["kind"] == "edge"]
    assert {(edge["from"], edge["relation_type"], edge["to"]) for edge in edges} >= {
        ("alice", "likes", "tea"),
        ("tea", "grows_in", "assam"),
    }
    types = {line["id"]: line["type"] for line in lines_of(served, store) if line["kind"] == "node"}
    assert (types["alice"], types["tea"], types["assam"]) == ("user", "unknown", "unknown")


def test_other_files_are_refused_and_empty_ones_are_fine() -> None:
    for text, words in (
        (b"{", "mem0.json is not JSON"),
        (b'{"memories": []}', "is not a file of mem0"),
        (b"3", "mem0"),
        (BOM_UTF8 + b"3", "is not a file of mem0"),
        (b'[{"memory": "a", "memory": "b"}]', r"it has the key `\[0\].memory` twice"),
    ):
        with pytest.raises(InvalidInput, match=words):
            list(read_mem0_memories(BytesIO(text), "mem0.json"))
    file = BytesIO()
    assert write_mem0_file([], file) == 0
    assert list(read_mem0_memories(BytesIO(file.getvalue()), "")) == []


def read_nodes(*items: dict[str, str]) -> list[dict[str, Any]]:
    records = read_mem0_memories(BytesIO(msgspec.json.encode(items)), "")
    lines = [msgspec.json.decode(each.line) for each in records if isinstance(each, NdjsonExchangeLine)]
    return [line for line in lines if line["kind"] == "node"]


def test_last_day_of_calendar_is_no_end() -> None:
    (node,) = read_nodes({"memory": "x", "expiration_date": "9999-12-31"})
    assert (node["content"], "valid_to" in node) == ("x", False)


def test_ids_are_derived_where_mem0_has_none() -> None:
    items = {"memory": "x", "user_id": "alice"}, {"memory": "x", "agent_id": "alice"}
    found = read_nodes(*items)
    assert found == read_nodes(*items)
    assert len({node["id"] for node in found}) == 4
    assert [(node["id"], node["type"]) for node in found if "name" in node] == [
        ("alice", "user"),
        ("agent:alice", "agent"),
    ]
