"""Nodes and edges as a folder of Markdown files, which Obsidian opens with its links.

A note that was imported gets the file that it came from, as long as nothing else was said about it. Any other node
becomes a note with its attributes as properties, its edges as properties with wiki links, and everything that Markdown
has no place for under the property ``kgserve``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from kgserve.graph.transfer.formats.markdown_note_text import InvalidFrontMatter, format_front_matter
from kgserve.graph.transfer.formats.markdown_notes import (
    EXPORT_PROPERTY,
    MARKDOWN_CREATED_BY,
    NOTE_SUFFIX,
    NOTE_TYPE,
    RESERVED_PROPERTIES,
    SOURCE_ATTRIBUTE,
    TAGS_PROPERTY,
    TYPE_PROPERTY,
    NoteEdgeBuilder,
    NoteLinkResolver,
    hash_note_text,
    parse_markdown_note,
)
from kgserve.graph.transfer.formats.ndjson_exchange_lines import ExportNodeEdgeSplitter
from kgserve.platform.codecs import json_decoder
from kgserve.platform.json_values import is_same_json_value

_UNSAFE_NAME_CHARS = re.compile(r"[\x00-\x1f\x7f\\/:*?\"<>|#^\[\]%\u2028\u2029\ufeff]+")
_SIMPLE_TAG = re.compile(r"[\w/-]+")
_MAX_NAME_CHARS = 60
_MAX_FILE_NAME_BYTES = 240
_TIME_FIELDS = ("created_at", "updated_at", "version")

_Fields = dict[str, Any]
_encode = msgspec.json.Encoder().encode
_decode = json_decoder(_Fields).decode


class MarkdownFolderExport:
    """Notes of an export; reading them takes all of its lines into memory."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        lines = ExportNodeEdgeSplitter(blocks)
        self._nodes = [_fields_of(node) for batch in lines.nodes() for node in batch]
        self._edges: defaultdict[str, list[_Fields]] = defaultdict(list)
        for batch in lines.edges():
            for edge in batch:
                fields = _fields_of(edge)
                self._edges[fields.pop("from")].append(fields)
        self._stems = _choose_stems(self._nodes)
        ids = {stem: node_id for node_id, stem in self._stems.items()}
        self._builder = NoteEdgeBuilder(NoteLinkResolver(ids), ids)

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Yield the path of each note, relative to the folder, and its content."""
        for node in self._nodes:
            stem = self._stems[node["id"]]
            text = self._original_text(stem, node)
            yield f"{stem}{NOTE_SUFFIX}", (text or self._format_note(node)).encode()

    def _original_text(self, stem: str, node: _Fields) -> str | None:
        """Return the text of an imported note, if importing it gives this node and its edges."""
        source = _get_source(node)
        if source is None or stem != node["id"]:
            return None
        text = f"{source.get('head', '')}{node.get('content', '')}"
        try:
            note = parse_markdown_note(stem, text)
        except InvalidFrontMatter:
            return None
        if not _is_same_node(note.node, node):
            return None
        edges = {(edge["to"], edge["relation_type"]): edge for _, edge in self._builder.edges(stem, note)}
        is_same = all(
            _is_same_edge(edges.get((edge["to"], edge["relation_type"])), edge) for edge in self._edges.get(stem, ())
        )
        return text if is_same else None

    def _format_note(self, node: _Fields) -> str:
        """Return a node as a note with all of its fields."""
        attributes: _Fields = node.get("attributes", {})
        visible = {name: value for name, value in attributes.items() if _is_visible_property(name, value)}
        hidden = {name: value for name, value in attributes.items() if name not in visible}
        content, tags = node.get("content", ""), node.get("tags") or []
        exported = {
            name: value for name, value in node.items() if name not in {"kind", "type", "content", "tags", "attributes"}
        }
        properties: _Fields = {}
        if not node["type"].strip():
            exported["type"] = node["type"]
        elif node["type"] != NOTE_TYPE:
            properties[TYPE_PROPERTY] = node["type"]
        if tags:
            properties[TAGS_PROPERTY] = tags
        if not all(map(_SIMPLE_TAG.fullmatch, tags)):
            exported["tags"] = tags
        if hidden:
            exported["attributes"] = hidden
        exported["sha256"] = hash_note_text(content)
        properties |= visible
        self._add_edges(node["id"], properties, exported)
        return format_front_matter(properties | {EXPORT_PROPERTY: exported}) + content

    def _add_edges(self, node_id: str, properties: _Fields, exported: _Fields) -> None:
        """Add the edges of a node: as links in a property for each relation, and their fields."""
        taken = {*properties, *RESERVED_PROPERTIES}
        names: dict[str, str] = {}
        for edge in self._edges.get(node_id, ()):
            fields = {name: value for name, value in edge.items() if name != "kind"}
            target = self._stems.get(edge["to"])
            if target is None or "to_graph" in edge or edge["to"] == node_id:
                exported.setdefault("links", []).append(fields)
                continue
            relation = edge["relation_type"]
            if relation not in names:
                name = relation
                while name in taken:
                    name += "_"
                names[relation] = name
                taken.add(name)
            properties.setdefault(names[relation], []).append(f"[[{target}|{target.rpartition('/')[2]}]]")
            exported.setdefault("edges", {}).setdefault(names[relation], []).append(fields)


def _fields_of(record: msgspec.Struct) -> _Fields:
    """Return the fields of a line that are set, by their names in the exchange format."""
    return {name: value for name, value in _decode(_encode(record)).items() if value is not None}


def _get_source(node: _Fields) -> _Fields | None:
    source = node.get("attributes", {}).get(SOURCE_ATTRIBUTE)
    return source if isinstance(source, dict) and node.get("created_by") == MARKDOWN_CREATED_BY else None


def _is_same_node(imported: _Fields, node: _Fields) -> bool:
    ignored = {"kind", "attributes", *_TIME_FIELDS}
    mine, theirs = (
        {name: value for name, value in fields.items() if name not in ignored and value not in (None, [], "")}
        for fields in (imported, node)
    )
    mine_attributes, their_attributes = (
        {name: value for name, value in fields.get("attributes", {}).items() if name != SOURCE_ATTRIBUTE}
        for fields in (imported, node)
    )
    return mine == theirs and is_same_json_value(mine_attributes, their_attributes)


def _is_same_edge(imported: _Fields | None, edge: _Fields) -> bool:
    if imported is None:
        return False
    attributes = {
        name: value for name, value in edge.get("attributes", {}).items() if name not in {"created_at", "updated_at"}
    }
    own = edge.keys() - {"kind", "to", "relation_type", "created_by", "weight", "attributes", "version"}
    return (
        not own
        and imported.get("created_by") == edge.get("created_by")
        and edge.get("weight", 1.0) == 1.0
        and is_same_json_value(imported.get("attributes", {}), attributes)
    )


def _is_visible_property(name: str, value: Any) -> bool:
    """Return whether an attribute can be a property: its name is free, and its value holds no link."""
    return bool(name.strip()) and name not in RESERVED_PROPERTIES and b"[[" not in _encode(value)


def _choose_stems(nodes: list[_Fields]) -> dict[str, str]:
    """Return the path of each node's file without its suffix: that of an imported note, else one from its name."""
    stems = {node["id"]: node["id"] for node in nodes if _get_source(node) is not None and _is_safe_stem(node["id"])}
    taken = {stem.casefold() for stem in stems}
    for node in nodes:
        if node["id"] in stems:
            continue
        words = node.get("name") or node.get("summary") or node.get("content") or node["id"]
        stem = f"{_file_name(node['type'])}/{_file_name(words, node['id'])}"
        chosen, number = stem, 1
        while chosen.casefold() in taken:
            number += 1
            chosen = f"{stem} {number}"
        taken.add(chosen.casefold())
        stems[node["id"]] = chosen
    return stems


def _file_name(*words: str) -> str:
    """Return a file name from the first of some texts that has usable characters."""
    for text in words:
        line = next((line for line in text.splitlines() if line.strip()), "")
        name = _UNSAFE_NAME_CHARS.sub("-", line)[:_MAX_NAME_CHARS].strip(" .-")
        if name and name.isprintable():
            while len(name.encode()) > _MAX_FILE_NAME_BYTES:
                name = name[:-1]
            return name
    return "Untitled"


def _is_safe_stem(stem: str) -> bool:
    """Return whether a path stays in the folder, and is one that an import reads."""
    return "\0" not in stem and all(
        part and not part.startswith(".") and len(part.encode()) <= _MAX_FILE_NAME_BYTES for part in stem.split("/")
    )
