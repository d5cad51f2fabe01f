"""Unicode normalization of texts, and their division into words, runs of scripts without blanks, and emoji.

Blanks separate the words of most scripts. Chinese, Japanese, Korean, Thai, Lao, Khmer, Burmese and their relatives are
divided into overlapping pairs of characters instead (bigrams), as in Lucene's CJK analysis. For scripts with combining
marks, a character is a letter with all its marks.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple

SegmentKind = Literal["word", "run", "emoji"]

_HAN = (
    "\u2e80-\u2fd5\u3005-\u3007\u3021-\u3029\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff\ua000-\ua48c\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
_KANA = (
    "\u3041-\u3096\u3099-\u309a\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3105-\u312f\u31f0-\u31ff\U0001b000-\U0001b16f"
)
_HANGUL = "\u1100-\u11ff\u3131-\u318e\ua960-\ua97f\uac00-\ud7ff"
_SOUTH_EAST_ASIAN = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ece\u0edc-\u0edf\u1000-\u103f\u104c-\u109f\u1780-\u17d3\u17d7\u17dc\u17dd"
    "\u1950-\u19cf\u1a20-\u1a7c\ua9e0-\ua9ef\ua9fa-\ua9fe\uaa60-\uaadf"
)
_EMOJI = (
    "\u231a\u231b\u23e9-\u23fa\u2600-\u27bf\u2b05-\u2b55\U0001f000-\U0001f0ff\U0001f300-\U0001f3fa\U0001f400-\U0001faff"
)
_FLAG_LETTER = "[\U0001f1e6-\U0001f1ff]"
_SKIN_TONE = "[\U0001f3fb-\U0001f3ff]"
_EMOJI_TAG = "[\U000e0020-\U000e007f]"

_IGNORED = (
    "\u00ad\u034f\u061c\u0640\u180e\u200b\u200c\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufe00-\ufe0f\ufeff"
    "\u0559-\u055c\u055e\u055f\u20dd-\u20e4\U000e0100-\U000e01ef"
)
_ZERO_WIDTH_JOINER = re.compile(f"(?<![{_EMOJI}\U0001f3fb-\U0001f3ff])\u200d")
# Marks inside of words: quotation marks in Hebrew acronyms, apostrophes in Ukrainian.
_HEBREW_MARK = re.compile("(?<=[\u05d0-\u05ea])[\"'](?=[\u05d0-\u05ea])")
_CYRILLIC_APOSTROPHE = re.compile("(?<=[\u0400-\u04ff])'(?=[\u0400-\u04ff])")
_OTHER_DIGIT = re.compile(r"[^\D0-9]")
_HAN_CHARACTER = re.compile(f"[{_HAN}]")
_HANGUL_CHARACTER = re.compile(f"[{_HANGUL}]")
_MAX_HANGUL_WITH_SINGLES = 3


class TextSegment(NamedTuple):
    """Word, run of a script without blanks, or emoji, with its position in the normalized text."""

    text: str
    kind: SegmentKind
    start: int
    end: int


def normalize_characters(text: str) -> str:
    """Return a text in Unicode's form NFKC with its case, without invisible characters and with ASCII digits.

    Typographic apostrophes and hyphens become those of ASCII, trademark signs blanks, and fractions spelled out.
    """
    if text.isascii():
        return text
    text = unicodedata.normalize("NFKC", text.translate(_replacements()))
    if "\u200d" in text:
        text = _ZERO_WIDTH_JOINER.sub("", text)
    text = _CYRILLIC_APOSTROPHE.sub("", _HEBREW_MARK.sub("", text))
    return _OTHER_DIGIT.sub(lambda digit: str(unicodedata.decimal(digit[0])), text)


def split_text_into_segments(text: str) -> Iterator[TextSegment]:
    """Yield the words, runs and emoji of a normalized text in order."""
    for match in _segment_pattern().finditer(text):
        kind: SegmentKind = "word" if match["word"] else "run" if match["run"] else "emoji"
        yield TextSegment(match[0], kind, match.start(), match.end())


def split_text_into_graphemes(run: str) -> list[str]:
    """Return the characters of a run, each with its combining marks."""
    if _is_unmarked(run):
        return [*run]
    return _character_pattern().findall(run)


def list_character_bigrams(run: str) -> list[str]:
    """Return the overlapping pairs of characters of a run; a run of one character is returned as it is."""
    characters = split_text_into_graphemes(run)
    if len(characters) == 1:
        return characters
    return [one + other for one, other in pairwise(characters)]


def list_cjk_run_unigrams(run: str) -> list[str]:
    """Return the single characters by which a run is also found: those of Han, and the first of a short Hangul word."""
    if len(run) == 1:
        return []
    singles = _HAN_CHARACTER.findall(run)
    if len(run) <= _MAX_HANGUL_WITH_SINGLES and _HANGUL_CHARACTER.match(run):
        singles.append(run[0])
    return singles


def split_emoji_and_drop_skin_tones(emoji: str) -> list[str]:
    """Return the emoji of a sequence without skin tones; a flag as it is."""
    return [emoji] if re.match(_FLAG_LETTER, emoji) else re.findall(f"(?!{_SKIN_TONE})[{_EMOJI}]", emoji)


@lru_cache(maxsize=1)
def _replacements() -> dict[int, str | None]:
    table: dict[int, str | None] = {
        ord(char): None for char in re.findall(f"[{_IGNORED}]", "".join(map(chr, range(0x10000))))
    }
    table.update(dict.fromkeys(range(0xE0100, 0xE01F0)))
    table.update(dict.fromkeys(map(ord, "\u2018\u2019\u02bc\u02b9\u05f3\u2032\u00b4\uff07"), "'"))
    table.update(dict.fromkeys(map(ord, "\u2010\u2011"), "-"))
    table.update(dict.fromkeys(map(ord, "\u2122\u2120\u00ae\u00a9\u00b0\u00a8\u00af\u00b8"), " "))
    table.update({0x05F4: '"', 0x266F: "#", 0x309B: "\u3099", 0x309C: "\u309a"})
    for code in (*range(0xBC, 0xBF), *range(0x2150, 0x215F)):
        table[code] = f" {unicodedata.normalize('NFKC', chr(code))} ".replace("\u2044", "/")
    return table


@lru_cache(maxsize=1)
def build_combining_mark_ranges() -> str:
    """Return all combining marks as ranges for a class of a regular expression."""
    ranges: list[list[int]] = []
    for code in (*range(0x300, 0x10000), *range(0x10000, min(0x20000, sys.maxunicode))):
        if unicodedata.category(chr(code))[0] == "M":
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)


@lru_cache(maxsize=1)
def _segment_pattern() -> re.Pattern[str]:
    others = _HAN + _KANA + _HANGUL + _SOUTH_EAST_ASIAN
    letter = f"[^\\W_{others}]"
    element = f"[{_EMOJI}]{_SKIN_TONE}?"
    return re.compile(
        f"(?P<word>{letter}(?:{letter}|[{build_combining_mark_ranges()}])*)"
        f"|(?P<run>[{_HAN}{_KANA}]+|[{_HANGUL}]+|[{_SOUTH_EAST_ASIAN}]+)"
        f"|(?P<emoji>{_FLAG_LETTER}{{2}}|{element}(?:\u200d{element})*{_EMOJI_TAG}*)"
    )


@lru_cache(maxsize=1)
def _character_pattern() -> re.Pattern[str]:
    """Return the pattern of a letter with its marks; Khmer and Burmese stack further letters below it."""
    return re.compile(f".(?:[\u17d2\u1039].|[{build_combining_mark_ranges()}])*")


def _is_unmarked(run: str) -> bool:
    """Return whether a run is Chinese, Japanese or Korean, whose characters have no marks after normalization."""
    return run[0] >= "\u2e80"
