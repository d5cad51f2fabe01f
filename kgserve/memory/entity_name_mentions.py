"""Search for the names of one entity in nodes, edges and former states, with the rules for word boundaries."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any

from kgserve.platform.codecs import decode_json
from kgserve.storage.model.node_edge_fields import NO_EDGE_EXTRAS, NO_EXTRAS
from kgserve.storage.model.node_edge_rows import EdgeRow, NodeRow, split_edge_times_from_attributes
from kgserve.storage.rows.rows_snapshot import RowsSnapshot

_FIRST_UNSPACED_CHARACTER = "\u2e80"
"""First character of the East Asian scripts, most of which write no spaces between words."""


class NameMentionFinder:
    """Finds names as whole words, ignoring case, letter forms and the kind of whitespace.

    In scripts without spaces between words, a name is found anywhere.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(dict.fromkeys(name for each in names if (name := " ".join(_fold(each).split()))))
        self._first_words = [name.split()[0] for name in self.names]
        patterns = [_pattern_of(name) for name in sorted(self.names, key=len, reverse=True)]
        self._pattern = re.compile("|".join(patterns)) if patterns else None

    def is_in(self, text: str) -> bool:
        """Return whether a text contains one of the names."""
        return self._pattern is not None and self._pattern.search(_fold(text)) is not None

    def is_in_node(self, row: NodeRow) -> bool:
        """Return whether a node has one of the names in its id, texts, tags or metadata."""
        return any(map(self.is_in, _texts_of_node(row)))

    def is_in_edge(self, row: EdgeRow) -> bool:
        """Return whether an edge has one of the names in its context or metadata; its ends are not examined."""
        return any(map(self.is_in, _texts_of_edge(row)))

    def find_nodes(self, rows: RowsSnapshot) -> list[NodeRow]:
        """Return all nodes with one of the names. Reads every row, and decodes those that may have one."""
        found: list[NodeRow] = []
        for numbers in rows.node_slices() if self.names else ():
            texts = rows.node_texts(numbers, 0)
            possible = [number for number, text in zip(numbers.tolist(), texts, strict=True) if self._may_be_in(text)]
            found += (row for each in possible if (row := rows.node_row(each)) is not None and self.is_in_node(row))
        return found

    def find_edges(self, rows: RowsSnapshot) -> list[EdgeRow]:
        """Return all edges with one of the names. Reads every row, and decodes batches that may have one."""
        found: list[EdgeRow] = []
        for batch in rows.edge_slices() if self.names else ():
            if any(map(self._may_be_in, rows.edge_texts(batch))):
                found += filter(self.is_in_edge, rows.rows_of(batch))
        return found

    def _may_be_in(self, data: bytes) -> bool:
        """Return False if no text in some JSON can have a name."""
        text = _fold(data.decode())
        return any(word in text or '"' in word or "\\" in word for word in self._first_words)


def _fold(text: str) -> str:
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def _pattern_of(name: str) -> str:
    """Return the pattern of a folded name as whole words. An underscore separates words, too."""
    body = r"\s+".join(map(re.escape, name.split()))
    before = r"(?<![^\W_])" if _needs_boundary(name[0]) else ""
    after = r"(?![^\W_])" if _needs_boundary(name[-1]) else ""
    return f"{before}{body}{after}"


def _needs_boundary(character: str) -> bool:
    return character.isalnum() and character < _FIRST_UNSPACED_CHARACTER


def _texts_of_node(row: NodeRow) -> Iterator[str]:
    extras = row.extras or NO_EXTRAS
    yield from (row.content, row.id, extras.name, extras.context, extras.source, extras.summary)
    yield from extras.tags
    yield from _texts_of_json(row.attributes)


def _texts_of_edge(row: EdgeRow) -> Iterator[str]:
    yield (row.extras or NO_EDGE_EXTRAS).context
    yield from _texts_of_json(split_edge_times_from_attributes(row.attributes).own)


def _texts_of_json(text: str) -> Iterator[str]:
    """Yield the keys and texts of JSON attributes."""
    if len(text) > 2:  # noqa: PLR2004 - empty attributes are {}
        yield from _texts_of_value(decode_json(text, Any))


def _texts_of_value(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for key, each in value.items():
                yield str(key)
                yield from _texts_of_value(each)
        case list():
            for each in value:
                yield from _texts_of_value(each)
        case _:
            pass
