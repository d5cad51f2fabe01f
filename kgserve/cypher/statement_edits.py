"""Edits of the text for the engine, by token, and the mapping back to the original text."""

from __future__ import annotations

from bisect import bisect_right

import msgspec

from kgserve.cypher.lexer import BracketMatchedTokens


class SourceMapAnchor(msgspec.Struct, frozen=True, array_like=True):
    """Mapping from ``offset`` in the rendered text to a position in the original; ``is_fixed`` within added text."""

    offset: int
    line: int
    column: int
    is_fixed: bool


class RewrittenStatement(msgspec.Struct, frozen=True):
    """Text for the engine, and the anchors that map it to the original."""

    text: str
    anchors: tuple[SourceMapAnchor, ...]


def map_rendered_to_original_position(text: str, anchors: tuple[SourceMapAnchor, ...], offset: int) -> tuple[int, int]:
    """Return the original line and column, from 1, of a character of a rendered text."""
    at = bisect_right(anchors, offset, key=lambda anchor: anchor.offset) - 1
    anchor = anchors[at] if at >= 0 else SourceMapAnchor(0, 1, 1, is_fixed=False)
    between = "" if anchor.is_fixed else text[anchor.offset : offset]
    newlines = between.count("\n")
    behind = len(between) - between.rfind("\n") - 1
    return anchor.line + newlines, behind + 1 if newlines else anchor.column + len(between)


class StatementEdits:
    """Texts to insert before, after or instead of tokens, by token index."""

    def __init__(self, outline: BracketMatchedTokens) -> None:
        self._outline = outline
        self._before: dict[int, list[str]] = {}
        self._behind: dict[int, list[str]] = {}
        self._replaced: dict[int, str] = {}
        self._joined: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._before or self._behind or self._replaced)

    def before(self, index: int, text: str) -> None:
        """Insert a text before a token, before earlier insertions there."""
        self._before.setdefault(index, []).insert(0, text)

    def behind(self, index: int, text: str) -> None:
        """Insert a text after a token, after earlier insertions there."""
        self._behind.setdefault(index, []).append(text)

    def insert_directly_after(self, index: int, text: str) -> None:
        """Insert a text after a token, before earlier insertions there."""
        self._behind.setdefault(index, []).insert(0, text)

    def join(self, index: int) -> None:
        """Remove the space before a token."""
        self._joined.add(index)

    def around(self, start: int, end: int, opening: str, closing: str) -> None:
        """Insert texts around a range of tokens."""
        self.before(start, opening)
        self.behind(end - 1, closing)

    def replace(self, start: int, end: int, text: str) -> None:
        """Replace a range of tokens, and discard insertions within it."""
        for index in range(start, end):
            self._replaced[index] = ""
            self._before.pop(index, None)
            self._behind.pop(index, None)
        self._joined.update(range(start + 1, end))
        self._replaced[start] = text

    def text(self, start: int, end: int) -> str:
        """Return tokens with all edits so far, on one line."""
        found = (self._edited_token(index) for index in range(start, end))
        return " ".join(part for part in found if part)

    def is_rewritten(self, start: int, end: int) -> bool:
        """Return whether any of these tokens has been edited."""
        places = range(start, end)
        return any(at in self._replaced or at in self._before or at in self._behind for at in places)

    def render(self) -> RewrittenStatement:
        """Return the whole text without comments, with plain spaces, and unedited tokens at their positions."""
        writer = _RenderWriter(self._outline.text)
        for index, token in enumerate(self._outline.tokens):
            writer.skip(token.start, is_joined=index in self._joined)
            for opening in self._before.get(index, ()):
                writer.add(opening)
            written = self._replaced.get(index)
            if written is None or written == token.text:
                writer.keep(token.end)
            else:
                writer.add(written)
                writer.position = token.end
            for closing in self._behind.get(index, ()):
                writer.add(closing)
        return RewrittenStatement("".join(writer.parts), tuple(writer.anchors))

    def _edited_token(self, index: int) -> str:
        token = self._outline.tokens[index]
        middle = self._replaced.get(index, token.text)
        return "".join([*self._before.get(index, ()), middle, *self._behind.get(index, ())])


class _RenderWriter:
    """Builder of the rendered text; ``position`` is the offset reached in the original."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.parts: list[str] = []
        self.anchors: list[SourceMapAnchor] = []
        self.position = 0
        self._length = 0
        self._is_moved = False

    def skip(self, until: int, *, is_joined: bool) -> None:
        """Write spaces and line breaks for the text between tokens; nothing if they are joined."""
        self._anchor(is_fixed=False)
        if not is_joined:
            self._write("".join("\n" if c == "\n" else " " for c in self._source[self.position : until]))
        self._is_moved |= is_joined
        self.position = until

    def keep(self, until: int) -> None:
        """Copy a token from the original."""
        self._anchor(is_fixed=False)
        self._write(self._source[self.position : until])
        self.position = until

    def add(self, text: str) -> None:
        """Write added text."""
        self._is_moved = True
        self._anchor(is_fixed=True)
        self._write(text)
        self._is_moved = True

    def _write(self, text: str) -> None:
        self.parts.append(text)
        self._length += len(text)

    def _anchor(self, *, is_fixed: bool) -> None:
        if self._is_moved:
            before = self._source[: self.position]
            line, column = before.count("\n") + 1, self.position - before.rfind("\n")
            self.anchors.append(SourceMapAnchor(self._length, line, column, is_fixed))
            self._is_moved = False
