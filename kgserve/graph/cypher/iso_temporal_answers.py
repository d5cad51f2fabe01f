"""Answers of the engine, with temporal values in the attributes of nodes and relationships as ISO texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import msgspec
from typing_extensions import override

from kgserve.cypher.interpreter.stored_temporal_values import format_temporal_attributes_as_iso
from kgserve.graph.cypher.engine_read_statements import MAX_RESULT_BYTES, ResultCursor
from kgserve.platform.codecs import decode_json
from kgserve.projections.cypher_engine.engine.protocol import ResultChunk

_ESCAPED_TAG = b'\\"$'
_encode = msgspec.json.Encoder().encode


class TemporalToTextCursor(ResultCursor):
    """Rows of another cursor, whose nodes and relationships show temporal attributes as texts."""

    def __init__(self, cursor: ResultCursor) -> None:
        self._cursor = cursor
        self.columns = cursor.columns
        self.types = cursor.types
        self.seconds = cursor.seconds

    @property
    @override
    def total(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride] - nothing assigns it
        return self._cursor.total

    @override
    def lines(self) -> Iterator[bytes]:
        return map(_convert_line, self._cursor.lines())

    @override
    def parts(self) -> Iterator[ResultChunk]:
        rest = b""
        for part in self._cursor.parts():
            text = rest + part.lines if rest else part.lines
            end = text.rfind(b"\n") + 1
            if len(text) - end > MAX_RESULT_BYTES:  # no answer has such a row
                end = len(text)
            text, rest = text[:end], text[end:]
            if _ESCAPED_TAG in text:
                text = b"".join(_convert_line(line) + b"\n" for line in text.split(b"\n")[:-1])
            yield msgspec.structs.replace(part, lines=text)


def wrap_cursor_with_temporal_texts(cursor: ResultCursor) -> ResultCursor:
    """Return a cursor whose nodes and relationships show texts; the cursor itself if it has none."""
    has_elements = any("NODE" in type_ or "REL" in type_ for type_ in cursor.types)
    return TemporalToTextCursor(cursor) if has_elements else cursor


def _convert_line(line: bytes) -> bytes:
    return _encode(convert_temporals_to_texts(decode_json(line, Any))) if _ESCAPED_TAG in line else line


def convert_temporals_to_texts(value: Any) -> Any:
    """Return a value of an answer; nodes and relationships within show temporal attributes as texts."""
    if isinstance(value, list):
        return [convert_temporals_to_texts(each) for each in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    entries = cast("dict[str, Any]", value)
    attributes = entries.get("attributes")
    if "_label" in entries and isinstance(attributes, str):
        return {**entries, "attributes": format_temporal_attributes_as_iso(attributes)}
    return {name: convert_temporals_to_texts(each) for name, each in entries.items()}
