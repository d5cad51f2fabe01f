from __future__ import annotations

import io

from kgserve.formats.files import stream_part
from tests.formats.converting import FIXTURES, read, taken


def test_the_servers_own_file() -> None:
    rows, faults = read(FIXTURES / "memory-server.jsonl", kind="memory-server")
    assert faults == []
    observations = ["Speaks fluent Spanish", 'Prefers "morning" meetings', "Graduated in 2019"]
    assert rows[0] == {
        "kind": "node",
        "id": "John_Smith",
        "type": "person",
        "content": "\n".join(observations),
        "attributes": {"observations": observations},
    }
    assert [each["id"] for each in rows[:3]] == ["John_Smith", "Anthropic", "Zürich 🏔"]
    assert rows[4] == {"kind": "edge", "from": "John_Smith", "to": "Zürich 🏔", "relation_type": "lives_in"}


def test_relations_wait_for_entities_and_wrong_lines_are_named() -> None:
    text = (
        '{"type":"relation","from":"a","to":"b","relationType":"R"}\n\n'
        '{"type":"entity","name":"a","entityType":"","observations":["x"],"later":1}\n'
        '{"kind":"node","id":"a"}\nnonsense\n{"type":"entity","name":"b","entityType":"t","observations":[1]}\n'
        '{"type":"entity","name":"\\ud800","entityType":"t"}\n'
        '{"type":"entity","name":"b"}'
    )
    rows, faults = taken([stream_part("memory-server", io.BytesIO(text.encode()), "memory.jsonl")])
    assert [each.get("id", "edge") for each in rows] == ["a", "b", "edge"]
    assert rows[0]["type"] == "entity"
    assert [fault.partition(": ")[0] for fault in faults] == [f"memory.jsonl line {number}" for number in (4, 5, 6, 7)]


def test_a_byte_order_mark_is_passed_over() -> None:
    text = '{"type":"entity","name":"a","entityType":"t","observations":[],"created":"later"}\r\n'
    rows, faults = taken([stream_part("memory-server", io.BytesIO(text.encode("utf-8-sig")), "memory.jsonl")])
    assert ([each["id"] for each in rows], faults) == (["a"], [])
