"""Changes to the text that the engine gets, by token, and the way back to what was typed."""

from __future__ import annotations

from bisect import bisect_right

import msgspec

from kgserve.cypher.lexer import Outline


class Anchor(msgspec.Struct, frozen=True, array_like=True):
    """What a place in the rendered text was in the typed one, from ``offset`` on; it ``is_fixed`` in added text."""

    offset: int
    line: int
    column: int
    is_fixed: bool


class RenderedStatement(msgspec.Struct, frozen=True):
    """A text for the engine, and the places from which it runs along with what was typed."""

    text: str
    anchors: tuple[Anchor, ...]


def place(text: str, anchors: tuple[Anchor, ...], offset: int) -> tuple[int, int]:
    """Return line and column, from 1, of what was typed for a character of a rendered text."""
    at = bisect_right(anchors, offset, key=lambda anchor: anchor.offset) - 1
    anchor = anchors[at] if at >= 0 else Anchor(0, 1, 1, is_fixed=False)
    between = "" if anchor.is_fixed else text[anchor.offset : offset]
    newlines = between.count("\n")
    behind = len(between) - between.rfind("\n") - 1
    return anchor.line + newlines, behind + 1 if newlines else anchor.column + len(between)


class Edits:
    """Texts to put before, behind and in the place of tokens, by their indexes."""

    def __init__(self, outline: Outline) -> None:
        self._outline = outline
        self._before: dict[int, list[str]] = {}
        self._behind: dict[int, list[str]] = {}
        self._replaced: dict[int, str] = {}
        self._joined: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._before or self._behind or self._replaced)

    def before(self, index: int, text: str) -> None:
        """Put a text before a token, and before what was put there earlier."""
        self._before.setdefault(index, []).insert(0, text)

    def behind(self, index: int, text: str) -> None:
        """Put a text behind a token, and behind what was put there earlier."""
        self._behind.setdefault(index, []).append(text)

    def directly_behind(self, index: int, text: str) -> None:
        """Put a text behind a token, and before what was put there earlier."""
        self._behind.setdefault(index, []).insert(0, text)

    def join(self, index: int) -> None:
        """Leave no space before a token."""
        self._joined.add(index)

    def around(self, start: int, end: int, opening: str, closing: str) -> None:
        """Put texts around tokens."""
        self.before(start, opening)
        self.behind(end - 1, closing)

    def replace(self, start: int, end: int, text: str) -> None:
        """Put a text in the place of tokens, and forget what was put within them."""
        for index in range(start, end):
            self._replaced[index] = ""
            self._before.pop(index, None)
            self._behind.pop(index, None)
        self._joined.update(range(start + 1, end))
        self._replaced[start] = text

    def text(self, start: int, end: int) -> str:
        """Return tokens with all that has been done to them so far, in one line."""
        found = (self._written(index) for index in range(start, end))
        return " ".join(part for part in found if part)

    def rewritten(self, start: int, end: int) -> bool:
        """Tell whether anything has been done to these tokens."""
        places = range(start, end)
        return any(at in self._replaced or at in self._before or at in self._behind for at in places)

    def render(self) -> RenderedStatement:
        """Return the whole text: no comments, plain spaces, and each token that stays in its place."""
        writer = _Writer(self._outline.text)
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
        return RenderedStatement("".join(writer.parts), tuple(writer.anchors))

    def _written(self, index: int) -> str:
        token = self._outline.tokens[index]
        middle = self._replaced.get(index, token.text)
        return "".join([*self._before.get(index, ()), middle, *self._behind.get(index, ())])


class _Writer:
    """Puts a text together; ``position`` is how far the typed one has been read."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.parts: list[str] = []
        self.anchors: list[Anchor] = []
        self.position = 0
        self._length = 0
        self._is_moved = False

    def skip(self, until: int, *, is_joined: bool) -> None:
        """Write spaces and line ends for what stands between tokens, nothing where they are joined."""
        self._anchor(is_fixed=False)
        if not is_joined:
            self._write("".join("\n" if c == "\n" else " " for c in self._source[self.position : until]))
        self._is_moved |= is_joined
        self.position = until

    def keep(self, until: int) -> None:
        """Write a token as it is."""
        self._anchor(is_fixed=False)
        self._write(self._source[self.position : until])
        self.position = until

    def add(self, text: str) -> None:
        """Write what was not typed."""
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
            self.anchors.append(Anchor(self._length, line, column, is_fixed))
            self._is_moved = False
