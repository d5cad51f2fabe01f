"""Folders of Markdown notes: what becomes of links, tags and front matter, and round trips."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given

from kgserve.graph.transfer.formats.markdown_folder_export import MarkdownFolderExport
from kgserve.graph.transfer.formats.markdown_folder_import import MarkdownFolderImport
from tests.fuzzing import examples
from tests.graph.transfer.formats.conversion_helpers import Row, blocks, collect_rows, exports
from tests.graph.transfer.formats.test_round_trips import everything

WEIGHT = ("weight", 1.0)
VAULT = {
    "Ada.md": (
        "---\ntags: math, poetry\ntype: person\nborn: 1815-12-10\nat: 12:30\nrating: 4.5\n"
        'knows: "[[people/Alan|Al]]"\n---\n'
        "See [[alan#Work|his work]], [[alan]] and ![[image.png]]. #history #123\n`[[no]] #no`\n"
        "```\n[[no]]\n```\n| [[Note.with dots\\|dots]] |\n[web](https://a.example/b.md), [local](people/Alan.md#Work)\n"
    ),
    "people/Alan.md": "![[Ada]] [[#Own heading]] [[Nobody]] [back](../Ada.md)\n",
    "Note.with dots.md": "\ufeff---\r\n---\r\ntext\r\n",
    "image.png": "",
    ".obsidian/x.md": "[[Ada]]",
}


def write_folder(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    return folder


def read_folder(folder: Path) -> tuple[list[Row], list[str], MarkdownFolderImport]:
    notes = MarkdownFolderImport(folder)
    return *collect_rows(notes.tables()), notes


def normal(rows: list[Row]) -> list[bytes]:
    """Return rows sorted and without the fields that say nothing."""
    kept = (
        {name: row[name] for name in sorted(row) if row[name] not in (None, [], {}, "") and (name, row[name]) != WEIGHT}
        for row in rows
    )
    return sorted(msgspec.json.encode(row, order="sorted") for row in kept)


def latest(rows: list[Row]) -> list[Row]:
    """Return the rows that a store would have: the last of each key, and edges between its nodes."""
    nodes = {row["id"]: row for row in rows if row["kind"] == "node"}
    edges = {(row["from"], row["to"], row["relation_type"]): row for row in rows if row["kind"] == "edge"}
    return [*nodes.values(), *(row for row in edges.values() if row["from"] in nodes and row["to"] in nodes)]


def test_links_tags_and_properties_of_a_vault(tmp_path: Path) -> None:
    rows, faults, notes = read_folder(write_folder(tmp_path, VAULT))
    assert not faults
    nodes = {row["id"]: row for row in rows if row["kind"] == "node"}
    assert set(nodes) == {"Ada", "people/Alan", "Note.with dots"}
    ada = nodes["Ada"]
    assert (ada["type"], ada["name"], ada["tags"]) == ("person", "Ada", ["math", "poetry", "history"])
    properties = {name: value for name, value in ada["attributes"].items() if name != "markdown"}
    assert properties == {"born": "1815-12-10", "at": "12:30", "rating": 4.5, "knows": "[[people/Alan|Al]]"}
    edges = {(row["from"], row["relation_type"], row["to"]): row.get("attributes") for row in rows[3:]}
    assert edges == {
        ("Ada", "links_to", "people/Alan"): {"headings": ["Work"], "aliases": ["his work", "local"]},
        ("Ada", "links_to", "Note.with dots"): {"aliases": ["dots"]},
        ("Ada", "knows", "people/Alan"): {"aliases": ["Al"]},
        ("people/Alan", "embeds", "Ada"): None,
        ("people/Alan", "links_to", "Ada"): {"aliases": ["back"]},
    }
    assert notes.unresolved == (1, ["people/Alan.md line 1: there is no note 'Nobody'"])
    assert dict(MarkdownFolderExport(blocks(rows)).files()) == {
        name: text.encode() for name, text in VAULT.items() if name[0] != "." and name.endswith(".md")
    }


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("---\na: 1\na: 2\n---\n", "bad.md line 3: the front matter is not YAML: 'a' occurs twice"),
        ("---\na: 1\nb: [\n---\n", "bad.md line 4: the front matter is not YAML"),
        ("---\na: &x 1\nb: *x\n---\n", "bad.md line 3: YAML aliases are not supported"),
        ("---\n- a\n---\n", "bad.md line 1: the front matter must be properties"),
        ("---\na: " + "[" * 500 + "\n---\n", "levels deep"),
        ("---\nmarkdown: 1\n---\n", "bad.md line 1: the property `markdown` is reserved"),
    ],
)
def test_faults_name_file_and_line(text: str, fault: str, tmp_path: Path) -> None:
    rows, faults, _ = read_folder(write_folder(tmp_path, {"bad.md": text, "good.md": "x"}))
    assert [row["id"] for row in rows] == ["good"]
    assert fault in faults[0]


def test_properties_of_unusual_types_are_kept(tmp_path: Path) -> None:
    text = "---\ntags:\n  -\n  - a\n  - 2024\ntype: [book, film]\nrating: 1e999\n---\n"
    rows, _, _ = read_folder(write_folder(tmp_path, {"odd.md": text, "one.md": "---\ntags: 2024\ntype:\n---\n"}))
    odd, one = rows
    assert (odd["type"], odd["tags"], one["type"], one["tags"]) == ("note", ["a", "2024"], "note", ["2024"])
    assert odd["attributes"].items() >= {"type": ["book", "film"], "rating": "1e999"}.items()
    assert "type" not in one["attributes"]
    assert dict(MarkdownFolderExport(blocks(rows)).files())["odd.md"] == text.encode()


def test_names_of_properties_are_kept_as_written(tmp_path: Path) -> None:
    rows, _, _ = read_folder(write_folder(tmp_path, {"a.md": "---\nnull: 1\nTrue: 2\n1.50: {~: 3}\n---\n"}))
    assert rows[0]["attributes"].items() >= {"null": 1, "True": 2, "1.50": {"~": 3}}.items()
    check_round_trip(rows)


def check_round_trip(rows: list[Row]) -> None:
    rows = latest(rows)
    with TemporaryDirectory() as folder:
        for name, content in MarkdownFolderExport(blocks(rows)).files():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            assert not path.exists()
            path.write_bytes(content)
        assert rows == [] or normal(read_folder(Path(folder))[0]) == normal(rows)


@given(rows=exports)
@examples(10)
def test_round_trip_of_any_store(rows: list[Row]) -> None:
    check_round_trip([row for row in rows if row["kind"] == "node"] + [row for row in rows if row["kind"] == "edge"])


def test_round_trip_of_every_field_and_of_links_into_stores() -> None:
    rows = everything()
    target = next(row["id"] for row in rows if row["kind"] == "node")
    edges: list[Row] = [
        {"kind": "edge", "from": "plain", "to": target, "relation_type": relation} for relation in ("tags", "kgserve")
    ]
    nodes = [row for row in rows if row["kind"] == "node"]
    check_round_trip([*nodes, *(row for row in rows if row["kind"] == "edge"), *edges])


def test_an_edit_of_an_exported_note_adds_its_links_and_tags(tmp_path: Path) -> None:
    rows: list[Row] = [
        {"kind": "node", "id": "m1", "type": "memory", "content": "Says [[Ada]]", "confidence": 0.5},
        {"kind": "node", "id": "e1", "type": "person", "name": "Ada"},
        {"kind": "edge", "from": "m1", "to": "e1", "relation_type": "is_about", "weight": 0.5},
    ]
    files = {name: content.decode() for name, content in MarkdownFolderExport(blocks(rows)).files()}
    assert set(files) == {"memory/Says -Ada.md", "person/Ada.md"}
    assert "is_about:\n- '[[person/Ada|Ada]]'" in files["memory/Says -Ada.md"]
    assert normal(read_folder(write_folder(tmp_path, files))[0]) == normal(rows)
    files["memory/Says -Ada.md"] += " #new"
    found, _, _ = read_folder(write_folder(tmp_path, files))
    assert next(row for row in found if row["id"] == "m1")["tags"] == ["new"]
    assert {row["relation_type"] for row in found if row["kind"] == "edge"} == {"is_about", "links_to"}
