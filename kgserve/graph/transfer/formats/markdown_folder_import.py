"""Notes of an Obsidian vault or of any folder of Markdown files, as nodes and edges.

A note is a node whose id is its path without ``.md``. Its links and embeds are edges, as are wiki links in its
properties. Notes that `markdown_folder_export` made of other nodes carry the fields that Markdown has no place for
under the property ``kgserve``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from kgserve.errors import InvalidInput
from kgserve.graph.transfer.formats.markdown_note_text import InvalidFrontMatter
from kgserve.graph.transfer.formats.markdown_notes import (
    MARKDOWN_CREATED_BY,
    NOTE_SUFFIX,
    SOURCE_ATTRIBUTE,
    NoteEdgeBuilder,
    NoteLinkResolver,
    ParsedNote,
    hash_note_text,
    parse_markdown_note,
)
from kgserve.graph.transfer.formats.ndjson_exchange_lines import (
    ExportedEdgeLine,
    ExportNodeEdgeSplitter,
    ImportRecord,
    ImportSourceTable,
    NdjsonExchangeLine,
    RejectedImportRow,
    encode_edge_ndjson_line,
    encode_node_ndjson_line,
)
from kgserve.platform.codecs import json_decoder
from kgserve.platform.json_values import is_same_json_value

_EdgeKey = tuple[str, str, str]
_decode_object = json_decoder(dict[str, Any]).decode


class ImportedNotes(NamedTuple):
    """Notes of earlier imports in a store: hashes of their files by id, and the attributes of their links."""

    hashes: dict[str, str]
    links: dict[_EdgeKey, dict[str, Any]]


def read_imported_notes(blocks: Iterable[bytes]) -> ImportedNotes:
    """Return the imported notes in an export of a store."""
    lines = ExportNodeEdgeSplitter(blocks)
    found = ImportedNotes({}, {})
    for nodes in lines.nodes():
        for node in nodes:
            if node.created_by == MARKDOWN_CREATED_BY:
                source = _decode_object(node.attributes).get(SOURCE_ATTRIBUTE)
                found.hashes[node.id] = source.get("sha256", "") if isinstance(source, dict) else ""
    for edges in lines.edges():
        for edge in edges:
            if edge.created_by == MARKDOWN_CREATED_BY and edge.to_graph is None:
                found.links[edge.source, edge.target, edge.relation_type] = decode_edge_attributes(edge)
    return found


def decode_edge_attributes(edge: ExportedEdgeLine) -> dict[str, Any]:
    """Return the attributes of an exported edge without its times."""
    attributes = _decode_object(edge.attributes)
    return {name: value for name, value in attributes.items() if name not in {"created_at", "updated_at"}}


_NOTHING_IMPORTED = ImportedNotes({}, {})


class MarkdownFolderImport:
    """Import of a folder: its notes, then their links, without those that are unchanged since an earlier import.

    The counts and differences are complete when the tables were read.
    """

    def __init__(self, root: Path, earlier: ImportedNotes = _NOTHING_IMPORTED) -> None:
        """Find the notes; hidden files and folders are left out. Raises InvalidInput for a folder without notes."""
        self._root, self._earlier = root, earlier
        self._stems, attachments = _find_files(root)
        if not self._stems:
            raise InvalidInput(f"{root} contains no Markdown files ({NOTE_SUFFIX})")
        self._ids: dict[str, str] = {}
        self._edges = NoteEdgeBuilder(NoteLinkResolver(self._stems, attachments), self._ids)
        self._parsed: dict[str, ParsedNote] = {}
        self._links: set[_EdgeKey] = set()
        self.rejected_notes = self.unchanged_notes = self.unchanged_links = 0
        self.changed_notes = self.new_notes = self.sent_links = 0

    def tables(self) -> list[ImportSourceTable]:
        """Return the notes, then their links, one table for each file. Can be read only once."""
        return [
            ImportSourceTable(f"{stem}{NOTE_SUFFIX}", "line", records(stem))
            for records in (self._note_records, self._link_records)
            for stem in self._stems
        ]

    @property
    def unresolved(self) -> tuple[int, list[str]]:
        """The number of links that name no note, and the first of them."""
        return self._edges.unresolved_count, self._edges.unresolved

    @property
    def removed_links(self) -> list[_EdgeKey]:
        """Links of the earlier import that their notes no longer have; none if a note, maybe an end, was rejected."""
        if self.rejected_notes:
            return []
        sources = set(self._ids.values())
        return [key for key in self._earlier.links if key[0] in sources and key not in self._links]

    @property
    def missing_notes(self) -> list[str]:
        """Ids of notes of the earlier import whose files are gone; none if a note, maybe one of these, was rejected."""
        if self.rejected_notes:
            return []
        present = {*self._stems, *self._ids.values()}
        return [note for note in self._earlier.hashes if note not in present]

    def _note_records(self, stem: str) -> Iterator[ImportRecord]:
        found = self._read_note(stem)
        if isinstance(found, RejectedImportRow):
            self.rejected_notes += 1
            yield found
            return
        text, note = found
        node_id = note.node["id"]
        self._ids[stem] = node_id
        self._parsed[stem] = note._replace(node={})
        earlier = self._earlier.hashes.get(node_id)
        if earlier == hash_note_text(text):
            self.unchanged_notes += 1
            return
        record = encode_node_ndjson_line(1, note.node)
        if isinstance(record, NdjsonExchangeLine):
            self.changed_notes += earlier is not None
            self.new_notes += earlier is None
        yield record

    def _read_note(self, stem: str) -> tuple[str, ParsedNote] | RejectedImportRow:
        try:
            content = (self._root / f"{stem}{NOTE_SUFFIX}").read_bytes()
        except OSError as error:
            return RejectedImportRow(1, f"cannot be read: {error.strerror}")
        try:
            text = content.decode()
            return text, parse_markdown_note(stem, text)
        except UnicodeDecodeError as error:
            line = content[: error.start].count(b"\n") + 1
            return RejectedImportRow(line, "is not UTF-8; convert the file, or save it with this encoding")
        except InvalidFrontMatter as error:
            return RejectedImportRow(error.line, f"{error}; the note was skipped")

    def _link_records(self, stem: str) -> Iterator[ImportRecord]:
        note = self._parsed.pop(stem, None)
        if note is None:
            return
        for line, edge in self._edges.edges(stem, note):
            key = (edge["from"], edge["to"], edge["relation_type"])
            self._links.add(key)
            if is_same_json_value(self._earlier.links.get(key), edge.get("attributes", {})):
                self.unchanged_links += 1
            else:
                self.sent_links += 1
                yield encode_edge_ndjson_line(line, edge)


def _find_files(root: Path) -> tuple[list[str], list[str]]:
    """Return the notes, without their suffix, and the other files of a folder, as paths relative to it."""
    stems: list[str] = []
    attachments: list[str] = []
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(name for name in files if not name.startswith(".")):
            path = Path(folder, name).relative_to(root).as_posix()
            if path.endswith(NOTE_SUFFIX):
                stems.append(path.removesuffix(NOTE_SUFFIX))
            else:
                attachments.append(path)
    return stems, attachments
