"""The wording of a text: what it says, word for word, without what says nothing.

Left out are case, punctuation, articles, the plural and the -s of verbs, and ``please``. Everything else stays,
each word in its place: numbers (words for numbers as numbers), signs and symbols, negations, prepositions, pronouns,
quantifiers, modal verbs, the past and the future. So two texts of one wording say the same. The rules are those of
English; a text in another language loses case and punctuation, and little more. They take inflection away and nothing
else: stemmers make one word of product and production, organ and organization, use and used.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache

from kgserve.model.vocabulary import listed, pairs

LONGEST = 10_000
"""Characters of the longest text that is taken apart; of a longer one the letters have to be the same."""
NUMBERS = {
    **{word: number for number, word in enumerate(listed("ones"))},
    **{word: 10 * number for number, word in enumerate(listed("tens"), 2)},
}
_POWERS = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9}
_ENDS = {1: "st", 2: "nd", 3: "rd"}  # codespell:ignore
_ORDINALS = {word: f"{number}{_ENDS.get(number, 'th')}" for number, word in enumerate(listed("ordinals"), 1)}
_BREAK = ""
"""Where punctuation ends a part of a text: a number does not go on behind it."""
_DASH = "\u2013"
"""A dash that says something, as in 3-5 and C-."""

# Letters before case goes


_ALIKE = str.maketrans(
    dict.fromkeys("\u2019\u2018\u02bc\u2032\u00b4`", "'")
    | dict.fromkeys("\u201c\u201d\u201e\u00ab\u00bb\u2033", '"')
    | dict.fromkeys("\u2010\u2011\u2012\u2013\u2212", "-")
    | dict.fromkeys("\u2014\u2015", " - ")
    | dict.fromkeys("\u00ad\u200b\ufeff\u00a1\u00bf", "")
    | {"\u2026": "...", "\u3002": ".", "\u3001": ",", "\uff1f": "?", "\uff01": "!"}
    | {
        raised: f"^{digit}"
        for digit, raised in enumerate("\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079")
    }
    | {"\u207b": "^-", "\u2044": "/"}
)
# A megabit is no megabyte, a milliwatt no megawatt, and five metres are no five millions.
_CASED = (
    (re.compile(r"(?<=\d)(\s?)([KMGTP]i?)b(?=ps\b|/s|\b)"), r"\1\2bit"),
    (re.compile(r"(?<=\d)(\s?)M(?![^\W\d_])"), r"\1mega"),
    (re.compile(r"(?<=\d)(\s?)m(?=(?:W|V|A|Hz)\b)"), r"\1milli"),
)
# getUsers is not getUser: the -s of what is written so is no plural.
_CAMEL = re.compile(r"(?<=[a-z])([A-Z][^\W_]*)s\b")
# The A team is not the team.
_LETTER = re.compile(r"(?<=[a-z\d,] )A(?![^ ])(?! [A-Z])")
_UNIT = re.compile(r"\d\s?[KMGTPm]")
_FINAL = ".,;:! "


def folded(text: str) -> str:
    """A text in one case and in one way of writing its letters and signs; blanks are as they were."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text.translate(_ALIKE))
    elif "`" in text:
        text = text.replace("`", "'")
    if _UNIT.search(text):
        for pattern, replacement in _CASED:
            text = pattern.sub(replacement, text)
    return text.casefold()


def normalised(text: str) -> str:
    """A text without regard to case, blanks and the punctuation at its end."""
    found = " ".join(folded(text).split())
    return found.rstrip(_FINAL) or found


def words(text: str) -> tuple[str, ...]:
    """The words and signs of a text that count, in order, as they are compared."""
    if not text.islower():
        text = _LETTER.sub("A_", _CAMEL.sub(r"\1_s", text)) if " A" in text else _CAMEL.sub(r"\1_s", text)
    plain = folded(text)
    found: list[str] = []
    for chunk in plain.split():
        found += _parts(chunk)
    if not _DEPENDING.isdisjoint(found):
        found = list(_in_context(found, plain))
    return tuple(word for word in found if word)


# One piece of a text between two blanks

_PIECE = re.compile(
    r"(?P<code>[^\W\d_]+\d\w*)|(?P<number>\d++(?:[.,:]\d++)*+(?:st|[nr]d|th)?)(?![^\W\d_])"
    r"|(?P<figures>\d++(?:[.,:]\d++)*+)|(?P<word>[^\W\d_]+(?:'[^\W\d_]+)?)|(?P<sign>.)"
)
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_ADDRESS = re.compile(r"[/\\@_]")
_ALONE = {"&": ("and",), "-": ("-",), "+": ("+",), "a.m": ("am",), "p.m": ("pm",)}
_SILENT = frozenset("()\"',;")
_CONTRACTIONS = {
    "can't": ("can", "not"),
    "cannot": ("can", "not"),
    "won't": ("will", "not"),
    "shan't": ("shall", "not"),
    "ain't": ("be", "not"),
    "let's": ("let", "us"),
}
_ENDINGS = {"'ll": "will", "'re": "be", "'ve": "have", "'m": "be", "'d": "'d"}
_BEFORE_IS = frozenset(listed("before is"))


@lru_cache(maxsize=1 << 14)
def _parts(chunk: str) -> tuple[str, ...]:
    """The words of what is between two blanks, as far as they do not depend on what is around it."""
    bare = chunk.lstrip("(\"'").rstrip(".,;:!)\"'")
    end = (_BREAK,) if chunk[-1] in ".,;:!?)" else ()
    if chunk in _ALONE or bare in _ALONE:
        return _ALONE[chunk if chunk in _ALONE else bare]
    if bare.isalpha():
        return (*_of_word(bare), *end)
    if not bare:
        return end
    if _ADDRESS.search(bare):
        return (bare.removesuffix("?"), *end)
    return (*_pieces(bare), *_mark_of(chunk, bare), *end)


def _mark_of(chunk: str, bare: str) -> Iterator[str]:
    """The mark of feet or inches behind a number, unless it is a quotation mark: see _in_context."""
    mark = chunk[chunk.index(bare) + len(bare) :][:1]
    if mark in {"'", '"'} and bare[-1].isdigit():
        yield mark


def _pieces(bare: str) -> Iterator[str]:
    matches = list(_PIECE.finditer(bare))
    for at, match in enumerate(matches):
        piece = match[0]
        if match["word"] or match["code"]:
            beside_number = at > 0 and matches[at - 1]["figures"] is not None
            # The A of 4A is no article.
            yield from (
                (f"{piece}_" if piece == "a" else piece,) if match["code"] or beside_number else _of_word(piece)
            )
        elif match["sign"]:
            yield from _sign(piece, match.start(), bare)
        else:
            yield _number(piece)


def _sign(sign: str, at: int, bare: str) -> Iterator[str]:
    """A sign, if it says something where it stands: a minus, a range or an option is more than a hyphen."""
    if sign == "-":
        before, after = bare[:at], bare[at + 1 :]
        if not before or not after or (before[-1].isdigit() and after[0].isdigit()) or not before[-1].isalnum():
            yield _DASH
    elif sign == ",":
        yield _BREAK
    elif sign not in _SILENT:
        yield sign


def _number(piece: str) -> str:
    return piece.replace(",", "") if _THOUSANDS.fullmatch(piece) else piece


def _of_word(word: str) -> tuple[str, ...]:
    """One word: nothing for an article, two for a contraction."""
    if word in _FIXED:
        return _FIXED[word]
    if "'" not in word:
        return (_singular(word),)
    stem, mark, ending = word.partition("'")
    if word.endswith("n't"):
        return (*_of_word(word.removesuffix("n't")), "not")
    if mark + ending in _ENDINGS:
        return (*_of_word(stem), _ENDINGS[mark + ending])
    if ending == "s":
        return (*_of_word(stem), "be") if stem in _BEFORE_IS else (_singular(stem),)
    return (word,)


# The plural, and the -s of verbs

_WITH_E = frozenset(listed("with e"))
_SOFT = frozenset(listed("soft"))
_OPEN = frozenset(listed("open"))
_KEPT = _SOFT | frozenset(listed("kept"))
_IRREGULAR = dict(pairs("irregular"))
_VOWEL = re.compile("[aeiouy]")
_SHORTEST_PLURAL = 4


def _singular(word: str) -> str:
    """A word without the -s of the plural and of verbs; what could be another word then stays as it is."""
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if not word.endswith("s") or word.endswith(("ss", "us", "is")) or word in _KEPT:
        return _ordinal(word)
    stem = word[:-1]
    if len(word) < _SHORTEST_PLURAL or not word.isascii() or not _VOWEL.search(stem):
        return word
    if stem.endswith(("a", "o", "ic")) and stem not in _OPEN:
        return word
    return _ordinal(_without_e(stem) if stem.endswith("e") and stem not in _WITH_E else stem)


def _without_e(stem: str) -> str:
    """What ends in -e without the -s: a word that does, or one that took -es."""
    if stem.endswith("ie"):
        return stem[:-2] + "y"
    if stem.endswith(("sse", "she", "che", "xe", "zze", "tze")) or stem[:-1] in _SOFT:
        return stem[:-1]
    if stem.endswith("use") and not stem.endswith(("ause", "ouse")):
        return stem[:-1]
    return stem


def _ordinal(word: str) -> str:
    return _ORDINALS.get(word, word)


_FIXED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("the", "an", "please", "kindly"), ()),
    "is": ("be",),
    "are": ("be",),
    "were": ("was",),
    "has": ("have",),
    "does": ("do",),
    "percent": ("%",),
    **_CONTRACTIONS,
}

# What depends on the words around it

_LABELS = frozenset(listed("labels"))
_NO_NOUN = frozenset(listed("no noun"))
_COUNTING = NUMBERS | _POWERS
_DEPENDING = frozenset({"a", "am", "-", "'", '"', "no", "minus", *_COUNTING})


def _in_context(found: Sequence[str], plain: str) -> Iterator[str]:
    at = 0
    while at < len(found):
        word, before = found[at], found[at - 1] if at else _BREAK
        after = found[at + 1] if at + 1 < len(found) else _BREAK
        if word in _COUNTING:
            at, number = _counted(found, at)
            yield number
            continue
        if word == "no" and after == "one":
            yield "nobody"
            at += 2
            continue
        if not (word == "a" and _is_article(before, after)):
            yield _meant(word, before, after, plain)
        at += 1


def _is_article(before: str, after: str) -> bool:
    """Whether an ``a`` is one, and not a letter as in plan A."""
    return before not in _LABELS and bool(after) and after not in _NO_NOUN


def _meant(word: str, before: str, after: str, plain: str) -> str:
    if word == "am":
        return "am" if before[:1].isdigit() else "be"
    if word == "-":
        return _DASH if before[:1].isdigit() and after[:1].isdigit() else _BREAK
    if word == "minus":
        return _DASH if after[:1].isdigit() or after in _COUNTING else word
    if word in {"'", '"'}:
        return word if plain.count(word) % 2 else _BREAK
    return word


def _counted(found: Sequence[str], at: int) -> tuple[int, str]:
    """The number that begins at a place, and where it ends: words for tens and ones, times powers of ten."""
    total = current = 0
    last: int | None = None
    while at < len(found) and found[at] in _COUNTING and _goes_on(found[at], last):
        last = _COUNTING[found[at]]
        if found[at] not in _POWERS:
            current += last
        elif last == 100:  # noqa: PLR2004
            current = max(current, 1) * last
        else:
            total, current = total + max(current, 1) * last, 0
        at += 1
    return at, str(total + current)


def _goes_on(word: str, last: int | None) -> bool:
    """Whether a word belongs to the number that the last one ended: one after twenty, and not after five."""
    if last is None or word in _POWERS:
        return True
    value = NUMBERS[word]
    return last >= 100 or (last >= 20 and 0 < value < 10)  # noqa: PLR2004
