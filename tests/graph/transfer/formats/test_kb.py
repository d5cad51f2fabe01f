"""Reader of camggould/kb's SQLite file."""

from __future__ import annotations

import sqlite3
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from kgserve.errors import InvalidInput
from kgserve.graph.transfer.formats.import_export_files import detect_import_format
from tests.cli.running import kgserve
from tests.graph.transfer.formats.conversion_helpers import Row, read

NOTES = """CREATE TABLE notes (
    id TEXT PRIMARY KEY, title TEXT NOT NULL, body TEXT NOT NULL, tags TEXT, source TEXT, context TEXT, workspace TEXT,
    links TEXT, created TEXT NOT NULL, modified TEXT NOT NULL, file_path TEXT NOT NULL, layer TEXT)"""
TIME = "2026-02-26T14:30:00.000Z"


def note(node_id: str | None, **values: Any) -> Row:
    fields = {"title": f"Title of {node_id}", "body": "Body", "created": TIME, "modified": TIME, "file_path": "n.md"}
    return {"id": node_id} | fields | values


def write_notes(path: Path, *notes: Row) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(NOTES)
        for each in notes:
            names, marks = ", ".join(each), ", ".join("?" * len(each))
            connection.execute(f"INSERT INTO notes ({names}) VALUES ({marks})", tuple(each.values()))  # noqa: S608 - constants
        connection.commit()
    return path


def test_notes_become_nodes_and_links_edges(tmp_path: Path) -> None:
    path = write_notes(
        tmp_path / "kb.db",
        note("a", tags='["go","style, long"]', links='["b","missing"]', workspace="work", layer="2", source="docs"),
        note("b", modified="2026-03-01T00:00:00Z", created="2026-02-27", title="", links="", tags=None),
    )
    before = path.read_bytes()
    rows, faults = read(path)
    assert faults == []
    assert (path.read_bytes(), sorted(each.name for each in tmp_path.iterdir())) == (before, ["kb.db"])
    assert rows[0] == {
        "kind": "node",
        "id": "a",
        "type": "fact",
        "content": "Body",
        "summary": "Title of a",
        "tags": ["go", "style, long"],
        "layer": 2,
        "created_at": TIME,
        "updated_at": TIME,
        "created_by": "kb-migration",
        "attributes": {
            "kb_source": "docs",
            "kb_workspace": "work",
            "kb_created": TIME,
            "kb_modified": TIME,
            "kb_file_path": "n.md",
            "kb_layer": "2",
        },
    }
    assert "created_at" not in rows[1]
    assert rows[1]["attributes"]["kb_created"] == "2026-02-27"
    assert [(row["from"], row["relation_type"], row["to"]) for row in rows[2:]] == [
        ("a", "cites", "b"),
        ("a", "cites", "missing"),
    ]


def test_faulty_notes_are_reported_and_others_imported(tmp_path: Path) -> None:
    path = write_notes(
        tmp_path / "kb.db",
        note("a", tags="go,style", links='{"b":1}'),
        note("b", tags="[1]", links="[2]"),
        note("c", body=b"\xff\xfe"),
        note("d"),
        note(None),
    )
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "INSERT INTO notes SELECT 'e', CAST(x'ff' AS TEXT), body, NULL, NULL, NULL, NULL, NULL, "
            "created, modified, file_path, NULL FROM notes WHERE id = 'd'"
        )
        connection.commit()
    rows, faults = read(path)
    assert [row["id"] for row in rows] == ["d"]
    assert sorted(faults) == [
        "kb.db row 1: has no id",
        "kb.db row 2: links must be a JSON array",
        "kb.db row 2: tags is not JSON: JSON is malformed: invalid character (byte 0)",
        "kb.db row 3: links contains 2, which is not a string",
        "kb.db row 3: tags contains 1, which is not a string",
        "kb.db row 4: body contains bytes instead of text",
        "kb.db row 6: contains text that is not Unicode: a lone surrogate, or bytes of another encoding",
    ]


def test_notes_in_write_ahead_log_are_read_from_copy(tmp_path: Path) -> None:
    folder = tmp_path / "my-kb"
    (folder / ".kb").mkdir(parents=True)
    path = write_notes(folder / ".kb" / "index.db", note("a"))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("UPDATE notes SET body = 'in the log'")
        connection.commit()
        before = {each.name: each.read_bytes() for each in path.parent.iterdir() if not each.name.endswith("-shm")}
        assert detect_import_format([folder]) == "kb"
        assert [row["content"] for row in read(folder)[0]] == ["in the log"]
        assert before == {each.name: each.read_bytes() for each in path.parent.iterdir() if each.name in before}


def test_kb_rejects_other_files(tmp_path: Path) -> None:
    other, damaged, text = tmp_path / "other.db", tmp_path / "damaged.db", tmp_path / "text.db"
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE chunks (id TEXT)")
    damaged.write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 16)
    text.write_text("{}")
    for path, message in (
        (other, "has the tables chunks"),
        (damaged, "cannot read it"),
        (text, "not a SQLite"),
    ):
        with pytest.raises(InvalidInput, match=message), ExitStack():
            read(path, kind="kb")


def test_import_command_accepts_kb_file_and_folder(tmp_path: Path) -> None:
    path = write_notes(tmp_path / "kb.db", note("a", links='["b","a"]'), note("b", tags='["x"]', layer="2"))
    (tmp_path / "data").mkdir()
    done = kgserve("import", "kb", path, "--data", tmp_path / "data")
    assert (done.code, "edges: 2 sent, 2 created" in done.out) == (0, True), done
    again = kgserve("import", "kb", path, "--data", tmp_path / "data")
    assert (again.code, "2 unchanged" in again.out) == (0, True), again
    lines = kgserve("export", "kb", "--data", tmp_path / "data").out
    assert '"tags":["x"]' in lines
    assert '"created_at":"2026-02-26T14:30:00.000000Z"' in lines


BAD = {
    "bad.ndjson": "nonsense\n",
    "bad.jsonl": '{"kind":"edge","from":"a","to":"b","relation_type":"R"}\n',
    "bad.csv": "id,type\na,b,c\n",
    "bad.graphml": "<html/>",
    "bad.xml": "<graphml><graph><node/></graph></graphml>",
    "bad.parquet": "no",
    "bad.kuzu": "no",
    "bad.db": "SQLite format 3\0no",
}


@pytest.mark.parametrize("name", BAD)
def test_a_failed_first_import_leaves_no_store(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(BAD[name])
    done = kgserve("import", "new", tmp_path / name, "--data", tmp_path)
    assert done.code != 0, done
    assert [each.name for each in tmp_path.glob("*_memory")] == [], done
