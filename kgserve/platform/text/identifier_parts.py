"""Division of identifiers, numbers and other compounds into parts: getUserById, snake_case, C++, 3.11.2, e-mail.

A compound is also indexed as a whole: its parts written together, so that e-mail finds email and getUserById finds
get_user_by_id. Numbers keep the separators between their digits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import xxhash

from kgserve.platform.text.segmentation import TextSegment, split_text_into_segments
from kgserve.platform.text.word_normalization import fold_word

MAX_TERM_CHARS = 10_000
"""Longer words are cut, and are also found as a whole by their checksum; tantivy ignores terms over 65,530 bytes."""
MAX_WHOLE_CHARS = 64
MIN_JOINED_DIGITS = 7
"""Numbers in groups, such as telephone numbers, are also indexed without hyphens if they have this many digits."""

_JOINTS = frozenset({"", "_", "__", "-", ".", "'", "::", "&"})
_CAMEL = re.compile(r"[a-z][A-Z]|[A-Z]{2}[a-z]")
_CAMEL_PARTS = re.compile(r"[A-Z]{2,}[a-z]?\d+(?![a-z])|[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_PLURAL = re.compile(r"[A-Z]{2,}s")
_MIN_CAMEL_CHARS = 5
_MEASURE = re.compile(r"(\d+)([^\W\d_]{2,4})")
_ORDINAL_ENDINGS = frozenset({"st", "nd", "rd", "th"})  # codespell:ignore
_VERSION = re.compile(r"[vV](\d+)")
_NUMBERED = re.compile(r"([^\W\d_]{3,})(\d{1,4})")
_SIGN_BEFORE = re.compile(r"(?:^|[^\w#@$.-])([#@$]|--|\.)$")
_SIGN_AFTER = re.compile(r"\+\+(?!\+)|#(?!\w)")
_MIN_SURNAME_CHARS = 3
_PROSE = re.compile(r"[^\W\d_]?[^\W\d_A-Z]*(?:[-'][^\W\d_]?[^\W\d_A-Z]*)*")


class CompoundWord(NamedTuple):
    """Word or compound of a text: its parts in order, and further terms by which it is found as a whole.

    ``extras`` are parts that count only for the index, such as the name in python3. ``phrase`` is what a query that
    contains the compound looks for in a row. ``is_name`` is true for identifiers and numbers, unlike e-mail.
    """

    parts: tuple[str, ...]
    wholes: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    phrase: tuple[str, ...] = ()
    is_name: bool = True


class UnspacedScriptRun(NamedTuple):
    """Run of a script without blanks."""

    text: str


class Emoji(NamedTuple):
    """Emoji or sequence of emoji."""

    text: str


@lru_cache(maxsize=1 << 12)
def list_word_and_emoji_tokens(chunk: str) -> tuple[CompoundWord | UnspacedScriptRun | Emoji, ...]:
    """Return the words, compounds, runs and emoji of a normalized text without blanks, in order."""
    return tuple(iterate_word_and_emoji_tokens(chunk))


def iterate_word_and_emoji_tokens(chunk: str) -> Iterator[CompoundWord | UnspacedScriptRun | Emoji]:
    """Yield the words, compounds, runs and emoji of a normalized text without blanks, in order."""
    group: list[TextSegment] = []
    for segment in split_text_into_segments(chunk):
        if segment.kind != "word":
            if group:
                yield _compound(chunk, group)
                group = []
            yield UnspacedScriptRun(segment.text) if segment.kind == "run" else Emoji(segment.text)
            continue
        if group and not _joins(chunk[group[-1].end : segment.start], group, segment):
            yield _compound(chunk, group)
            group = []
        group.append(segment)
    if group:
        yield _compound(chunk, group)


def split_camel_case_or_unit(word: str) -> tuple[str, ...]:
    """Return the parts of a word in camel case, or of a number with a unit; other words are returned as they are."""
    if len(word) >= _MIN_CAMEL_CHARS and word.isascii() and _CAMEL.search(word) and not _PLURAL.fullmatch(word):
        return tuple(_CAMEL_PARTS.findall(word))
    if (found := _MEASURE.fullmatch(word)) and found[2] not in _ORDINAL_ENDINGS:
        return found[1], found[2]
    return (word,)


def _joins(gap: str, group: Sequence[TextSegment], after: TextSegment) -> bool:
    """Return whether the characters between two words join them to a compound."""
    before = group[-1].text
    if gap in _JOINTS:
        return gap != "'" or _is_surname(before, after.text)
    both_digits = before[-1].isdigit() and after.text[0].isdigit()
    return both_digits and (gap == ":" or (gap == "," and before.isdigit() and len(after.text) == len("000")))


def _is_surname(before: str, after: str) -> bool:
    """Return whether an apostrophe is that of a name such as O'Brien, rather than of l'eau or don't."""
    return len(before) == 1 and before.isupper() and len(after) >= _MIN_SURNAME_CHARS and after[0].isupper()


def _compound(chunk: str, group: Sequence[TextSegment]) -> CompoundWord:
    first, last = group[0], group[-1]
    parts: list[str] = []
    wholes: list[str] = []
    extras: list[str] = []
    for segment in group:
        pieces = split_camel_case_or_unit(segment.text)
        if version := _VERSION.fullmatch(segment.text):
            pieces = (version[1],)
            wholes.append(segment.text)
        elif numbered := _NUMBERED.fullmatch(segment.text):
            extras.append(numbered[1])
        parts += pieces
    if len(parts) > 1:
        wholes += _wholes(chunk, group)
        if _VERSION.fullmatch(first.text):
            wholes += _wholes(chunk, [first._replace(text=first.text[1:]), *group[1:]])
    phrase = tuple(parts) if len(parts) > 1 else ()
    if extras and not phrase:
        phrase = (extras[0], parts[0][len(extras[0]) :])
    if last.end - first.start > MAX_TERM_CHARS:
        wholes.append(f"\u2026{xxhash.xxh3_64_hexdigest(chunk[first.start : last.end].encode(errors='surrogatepass'))}")
        parts = [part[:MAX_TERM_CHARS] for part in parts]
    parts[-1], signed = _add_sign(chunk, last, parts[-1])
    wholes += signed
    if (sign := _SIGN_BEFORE.search(chunk[: first.start])) and not (sign[1] == "." and first.text[0].isdigit()):
        wholes.append((sign[1] + chunk[first.start : last.end])[:MAX_WHOLE_CHARS])
    is_name = _PROSE.fullmatch(chunk[first.start : last.end]) is None
    return CompoundWord(tuple(parts), tuple(dict.fromkeys(map(fold_word, wholes))), tuple(extras), phrase, is_name)


def _add_sign(chunk: str, last: TextSegment, part: str) -> tuple[str, list[str]]:
    """Return the last part of a compound, with its sign if it is one letter as in C++, and wholes with the sign."""
    sign = _SIGN_AFTER.match(chunk, last.end) if last.text.isascii() else None
    if sign is None:
        return part, []
    return (part + sign[0], []) if len(part) == 1 else (part, [part + sign[0]])


def _wholes(chunk: str, group: Sequence[TextSegment]) -> list[str]:
    """Return the words of a compound written together; digits keep their separators, long numbers also lose them."""
    if group[-1].end - group[0].start > MAX_WHOLE_CHARS:
        return []
    written = group[0].text
    for before, after in pairwise(group):
        gap = chunk[before.end : after.start]
        if before.text[-1].isdigit() and (gap == "." or (after.text[0].isdigit() and gap not in {",", "_"})):
            written += gap
        written += after.text
    digits = sum(char.isdigit() for char in written)
    if "-" in written and digits >= MIN_JOINED_DIGITS:
        return [written, written.replace("-", "")]
    return [written]
