"""Notes in Markdown: their fields and links as nodes and edges, and the names that links use."""

from __future__ import annotations

import hashlib
import posixpath
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from kgserve.graph.transfer.formats.markdown_note_text import (
    InvalidFrontMatter,
    NoteLink,
    find_note_links_and_tags,
    find_wiki_links,
    get_property_tags,
    parse_note_properties,
    split_front_matter,
)

MARKDOWN_CREATED_BY = "markdown-import"
NOTE_SUFFIX = ".md"
NOTE_TYPE = "note"
LINK_RELATION = "links_to"
EMBED_RELATION = "embeds"
SOURCE_ATTRIBUTE = "markdown"
"""Attribute of an imported note: its front matter as it was written (``head``) and the hash of its file."""
EXPORT_PROPERTY = "kgserve"
TYPE_PROPERTY = "type"
TAGS_PROPERTY = "tags"
RESERVED_PROPERTIES = frozenset({EXPORT_PROPERTY, TYPE_PROPERTY, TAGS_PROPERTY, SOURCE_ATTRIBUTE})

_MAX_LISTED_LINKS = 20


def hash_note_text(text: str) -> str:
    """Return the SHA-256 of a text in UTF-8, in hexadecimal."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class PropertyLinks(NamedTuple):
    """Links in one property; ``edges`` are the exported edges that they stand for, None in a note of a vault."""

    name: str
    links: list[NoteLink]
    edges: list[dict[str, Any]] | None


class ParsedNote(NamedTuple):
    """Node of a note, its links, and exported links into other stores."""

    node: dict[str, Any]
    links: list[NoteLink]
    properties: list[PropertyLinks]
    store_links: list[dict[str, Any]]


def parse_markdown_note(stem: str, text: str) -> ParsedNote:
    """Return the node and the links of a note. Raises InvalidFrontMatter."""
    head, body = split_front_matter(text)
    properties = parse_note_properties(head)
    exported = properties.pop(EXPORT_PROPERTY, None)
    if isinstance(exported, dict) and isinstance(exported.get("id"), str):
        return _parse_exported_note(properties, dict(exported), body, head.count("\n") + 1)
    if SOURCE_ATTRIBUTE in properties:
        raise InvalidFrontMatter(1, f"the property `{SOURCE_ATTRIBUTE}` is reserved; rename it")
    links, inline_tags = find_note_links_and_tags(body, head.count("\n") + 1)
    node = {
        "id": stem,
        "type": _take_note_type(properties),
        "name": posixpath.basename(stem),
        "content": body,
        "tags": list(dict.fromkeys([*get_property_tags(properties.pop(TAGS_PROPERTY, None)), *inline_tags])) or None,
        "created_by": MARKDOWN_CREATED_BY,
        "attributes": properties
        | {SOURCE_ATTRIBUTE: ({"head": head} if head else {}) | {"sha256": hash_note_text(text)}},
    }
    found = ((name, _property_links(value)) for name, value in properties.items() if name != SOURCE_ATTRIBUTE)
    return ParsedNote(node, links, [PropertyLinks(name, some, None) for name, some in found if some], [])


def _parse_exported_note(
    properties: dict[str, Any], exported: dict[str, Any], body: str, first_line: int
) -> ParsedNote:
    """Return a note that an export made of a node. Links and tags of its text count only if the text was changed."""
    edges = exported.pop("edges", None) or {}
    store_links = exported.pop("links", None) or []
    attributes = exported.pop("attributes", None) or {}
    links, tags = (
        ([], []) if exported.pop("sha256", None) == hash_note_text(body) else find_note_links_and_tags(body, first_line)
    )
    node: dict[str, Any] = {
        "type": _take_note_type(properties),
        "content": body,
        "tags": list(dict.fromkeys([*get_property_tags(properties.pop(TAGS_PROPERTY, None)), *tags])) or None,
    }
    found = [
        PropertyLinks(name, _property_links(value), edges.get(name) or ([] if name in edges else None))
        for name, value in properties.items()
    ]
    node["attributes"] = {name: value for name, value in properties.items() if name not in edges} | attributes
    return ParsedNote(node | exported, links, [some for some in found if some.links], store_links)


def _take_note_type(properties: dict[str, Any]) -> str:
    """Remove and return the type of a note. A property ``type`` that is no text, such as a list, stays an attribute."""
    value = properties.get(TYPE_PROPERTY)
    if value is None or isinstance(value, str):
        properties.pop(TYPE_PROPERTY, None)
    return value if isinstance(value, str) and value.strip() else NOTE_TYPE


def _property_links(value: Any) -> list[NoteLink]:
    values = value if isinstance(value, list) else [value]
    return [link for each in values if isinstance(each, str) and "[[" in each for link in find_wiki_links(each, 1)]


class NoteLinkResolver:
    """Files of a folder by the names that links use: exact paths, then ends of paths, nearest first."""

    def __init__(self, stems: Iterable[str], attachments: Iterable[str] = ()) -> None:
        self._stems = set(stems)
        self._attachments = {path.casefold() for path in attachments}
        self._by_name: defaultdict[str, list[str]] = defaultdict(list)
        for stem in sorted(self._stems):
            self._by_name[posixpath.basename(stem).casefold()].append(stem)
        self._attachment_names = {posixpath.basename(path) for path in self._attachments}

    def resolve(self, link: NoteLink, source: str) -> str | None:
        """Return the stem of the note that a link in ``source`` names; the source itself for its own headings."""
        target = link.target.removesuffix(NOTE_SUFFIX)
        if not target:
            return source
        folder = posixpath.dirname(source)
        relative = posixpath.normpath(posixpath.join(folder, target))
        if link.is_path or target.startswith("."):
            if relative in self._stems:
                return relative
            if target.startswith("."):
                return None
        target = target.removeprefix("/")
        if target in self._stems:
            return target
        end = target.casefold()
        found = [
            stem for stem in self._by_name.get(posixpath.basename(end), ()) if f"/{stem.casefold()}".endswith(f"/{end}")
        ]
        name = posixpath.basename(target)
        return min(
            found,
            key=lambda stem: (
                posixpath.dirname(stem) != folder,
                posixpath.basename(stem) != name,
                stem.count("/"),
                stem,
            ),
            default=None,
        )

    def is_attachment(self, link: NoteLink) -> bool:
        """Return whether a link names a file that is no note."""
        target = link.target.casefold()
        return target in self._attachments or posixpath.basename(target) in self._attachment_names


class NoteEdgeBuilder:
    """Edges of notes; needs the ids of all notes by their stems first."""

    def __init__(self, resolver: NoteLinkResolver, ids: dict[str, str]) -> None:
        self._resolver, self._ids = resolver, ids
        self.unresolved_count = 0
        self.unresolved: list[str] = []

    def edges(self, stem: str, note: ParsedNote) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the edges of a note with their lines; several links to one note are one edge."""
        found: dict[tuple[str, str], tuple[int, dict[str, Any]]] = {}
        for link in note.links:
            self._add_link(found, stem, link, EMBED_RELATION if link.is_embed else LINK_RELATION)
        for name, links, edges in note.properties:
            for link in links:
                exported = self._exported_edge(stem, link, edges)
                if exported is None:
                    self._add_link(found, stem, link, name, is_own=edges is None)
                else:
                    found[exported["to"], exported["relation_type"]] = (link.line, {"from": self._ids[stem]} | exported)
        yield from found.values()
        for edge in note.store_links:
            yield 1, {"from": self._ids[stem]} | edge

    def _exported_edge(self, stem: str, link: NoteLink, edges: list[dict[str, Any]] | None) -> dict[str, Any] | None:
        target = self._resolver.resolve(link, stem) if edges else None
        to = self._ids.get(target) if target else None
        return next((edge for edge in edges or () if edge.get("to") == to), None)

    def _add_link(
        self,
        found: dict[tuple[str, str], tuple[int, dict[str, Any]]],
        stem: str,
        link: NoteLink,
        relation: str,
        *,
        is_own: bool = True,
    ) -> None:
        target = self._resolver.resolve(link, stem)
        if target == stem:
            return
        if target is None or target not in self._ids:
            if not self._resolver.is_attachment(link):
                self.unresolved_count += 1
                if len(self.unresolved) < _MAX_LISTED_LINKS:
                    self.unresolved.append(f"{stem}{NOTE_SUFFIX} line {link.line}: there is no note {link.target!r}")
            return
        edge: dict[str, Any] = {"from": self._ids[stem], "to": self._ids[target], "relation_type": relation}
        if is_own:
            edge["created_by"] = MARKDOWN_CREATED_BY
        _, edge = found.setdefault((edge["to"], relation), (link.line, edge))
        for name, value in (("headings", link.heading), ("aliases", link.alias)):
            if value and value not in (known := edge.setdefault("attributes", {}).setdefault(name, [])):
                known.append(value)
