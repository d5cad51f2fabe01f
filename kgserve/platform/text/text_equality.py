"""Textual equality of statements: same text, same wording, and what keeps similar texts apart.

Similarity in meaning is not enough: "prefers dark mode" and "does not prefer dark mode" are more similar than most
pairs that say the same. Two texts are treated as equal only if their wording is. Texts that are merely similar are
reported with what distinguishes them: numbers, negation, names, word order, mutually exclusive words.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Literal

from kgserve.platform.text.function_and_content_words import FUNCTION_WORDS
from kgserve.platform.text.wordlists import (
    load_opposites,
    load_synonyms,
    read_word_groups,
    read_word_list,
    read_word_pairs,
)

MAX_COMPARED_CHARS = 10_000
"""Maximum length of a text that is analyzed; longer texts must be identical except for case and whitespace."""
NUMBER_WORDS = {
    **{word: number for number, word in enumerate(read_word_list("ones"))},
    **{word: 10 * number for number, word in enumerate(read_word_list("tens"), 2)},
}
_POWERS = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9}
_ORDINAL_SUFFIXES = {1: "st", 2: "nd", 3: "rd"}  # codespell:ignore
_ORDINALS = {
    word: f"{number}{_ORDINAL_SUFFIXES.get(number, 'th')}" for number, word in enumerate(read_word_list("ordinals"), 1)
}
_BREAK = ""
"""Marks a punctuation boundary: numbers do not continue across it."""
_DASH = "\u2013"
"""A meaningful dash, as in 3-5 and C-."""

# Characters and case-sensitive units


_ALIKE = str.maketrans(
    dict.fromkeys("\u2019\u2018\u02bc\u2032\u00b4`", "'")
    | dict.fromkeys("\u201c\u201d\u201e\u00ab\u00bb\u2033", '"')
    | dict.fromkeys("\u2010\u2011\u2012\u2013\u2212", "-")
    | dict.fromkeys("\u2014\u2015", " - ")
    | dict.fromkeys("\u00ad\u200b\u200c\u200d\u2060\ufeff\u00a1\u00bf", "")
    | {"\u2026": "...", "\u3002": ".", "\u3001": ",", "\uff1f": "?", "\uff01": "!"}
    | {
        raised: f"^{digit}"
        for digit, raised in enumerate("\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079")
    }
    | {"\u207b": "^-", "\u2044": "/"}
)
# Keeps megabit and megabyte, milliwatt and megawatt, and 5m and 5M distinct after case folding.
_CASED = (
    (re.compile(r"(?<=\d)(\s?)([KMGTP]i?)b(?=ps\b|/s|\b)"), r"\1\2bit"),
    (re.compile(r"(?<=\d)(\s?)M(?![^\W\d_])"), r"\1mega"),
    (re.compile(r"(?<=\d)(\s?)m(?=(?:W|V|A|Hz)\b)"), r"\1milli"),
)
# In camel-case identifiers a final -s is not a plural: getUsers is not getUser.
_CAMEL = re.compile(r"(?<=[a-z])([A-Z][^\W_]*)s\b")
# A capital A can be a letter instead of an article: the A team.
_LETTER = re.compile(r"(?<=[a-z\d,] )A(?![^ ])(?! [A-Z])")
_UNIT = re.compile(r"\d\s?[KMGTPm]")
_FINAL = ".,;:! "


def fold_case_and_character_variants(text: str) -> str:
    """Return a text with case folded and typographic variants of characters unified; whitespace is unchanged."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text.translate(_ALIKE))
    elif "`" in text:
        text = text.replace("`", "'")
    if _UNIT.search(text):
        for pattern, replacement in _CASED:
            text = pattern.sub(replacement, text)
    return text.casefold()


def normalize_text_for_comparison(text: str) -> str:
    """Return a text with case folded, whitespace collapsed and final punctuation removed."""
    found = " ".join(fold_case_and_character_variants(text).split())
    return found.rstrip(_FINAL) or found


_WORD_TOKEN_PATTERN = re.compile(r"\w+")
_CAPITALISED = re.compile(r"\b[^A-Z\W]*+[A-Z]\w*+")
_OPTION = re.compile(r"(?<!\S)-[A-Z](?!\w)")
"""Options of commands of one capital, such as ``-A``."""
_MEANINGLESS_CAPITALS = frozenset({"AM", "PM", "OK"})
"""Capitalized words in which case has no meaning: 3 PM is 3 pm."""
_MEASURED = re.compile(r"\d+([^\W\d_]+)")
_PLURAL = re.compile(r"([A-Z]{2,})s")


def find_case_sensitive_tokens(text: str) -> list[str]:
    """Return the case-sensitive tokens of a text, in order: those that contain a capital and name something.

    These are tokens with an underscore, a digit or an inner capital, tokens in capitals, except for stressed English
    words, and then options such as -A. 5MB counts as MB, and APIs as API.
    """
    found = _CAPITALISED.findall(text)
    if found and text.lstrip().startswith(found[0]) and not any(letter.isupper() for letter in found[0][1:]):
        del found[0]  # a capital at the start of a sentence has no meaning
    return [*filter(None, map(_cased, found)), *_OPTION.findall(text)]


def _cased(token: str) -> str:
    """Return a token without inflection if its case matters, else ""."""
    if found := _MEASURED.fullmatch(token) or _PLURAL.fullmatch(token):
        token = found[1]
    if token.isalpha() and token.isupper():
        return "" if len(token) == 1 or token in _MEANINGLESS_CAPITALS or _is_english(token.lower()) else token
    named = not token.isalpha() or any(letter.isupper() for letter in token[1:])
    return token if named else ""


@lru_cache(maxsize=1 << 12)
def _is_english(word: str) -> bool:
    return word in load_synonyms() or word in load_opposites() or any(word in known for known in _english())


@lru_cache(maxsize=1)
def _english() -> tuple[frozenset[str], ...]:
    return (
        FUNCTION_WORDS,
        frozenset(read_word_list("stressed")),
        frozenset(_OF_VERBS),
        frozenset(_PAST),
        frozenset(NUMBER_WORDS),
    )


def extract_meaningful_words(text: str) -> tuple[str, ...]:
    """Return the wording of a text: its words in order, without those that carry no meaning.

    Case, punctuation, articles, plural and verb -s, and ``please`` are removed. Everything else is kept in its place:
    numbers (number words as digits), symbols, negations, prepositions, pronouns, quantifiers, modal verbs and tense.
    Texts with the same wording therefore say the same. The rules are those of English; texts in other languages lose
    little more than case and punctuation. No stemmer is used, because stemmers merge words such as organ and
    organization.
    """
    if not text.islower():
        text = _LETTER.sub("A_", _CAMEL.sub(r"\1_s", text)) if " A" in text else _CAMEL.sub(r"\1_s", text)
    plain = fold_case_and_character_variants(text)
    found: list[str] = []
    for chunk in plain.split():
        found += _parts(chunk)
    if not _DEPENDING.isdisjoint(found):
        found = list(_in_context(found, plain))
    return tuple(word for word in found if word)


# Tokens of a whitespace-separated chunk

_TEXT_PIECE_PATTERN = re.compile(
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
_CONTRACTED_ENDINGS = {"'ll": "will", "'re": "be", "'ve": "have", "'m": "be", "'d": "'d"}
_BEFORE_IS = frozenset(read_word_list("before is"))


@lru_cache(maxsize=1 << 14)
def _parts(chunk: str) -> tuple[str, ...]:
    """Return the words of a chunk between spaces, as far as they do not depend on its context."""
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
    """Yield a mark of feet or inches after a number; `_in_context` drops quotation marks."""
    mark = chunk[chunk.index(bare) + len(bare) :][:1]
    if mark in {"'", '"'} and bare[-1].isdigit():
        yield mark


def _pieces(bare: str) -> Iterator[str]:
    matches = list(_TEXT_PIECE_PATTERN.finditer(bare))
    for at, match in enumerate(matches):
        piece = match[0]
        if match["word"] or match["code"]:
            follows_number = at > 0 and matches[at - 1]["figures"] is not None
            # The A of 4A is not an article.
            yield from (
                (f"{piece}_" if piece == "a" else piece,) if match["code"] or follows_number else _of_word(piece)
            )
        elif match["sign"]:
            yield from _sign(piece, match.start(), bare)
        else:
            yield _number(piece)


def _sign(sign: str, at: int, bare: str) -> Iterator[str]:
    """Yield a sign if it has meaning in its position: a minus, range or option, unlike a hyphen."""
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
    """Return the words of a token: none for an article, two for a contraction."""
    if word in _NORMALIZED_WORDS:
        return _NORMALIZED_WORDS[word]
    if "'" not in word:
        return (_singular(word),)
    stem, mark, ending = word.partition("'")
    if word.endswith("n't"):
        return (*_of_word(word.removesuffix("n't")), "not")
    if mark + ending in _CONTRACTED_ENDINGS:
        return (*_of_word(stem), _CONTRACTED_ENDINGS[mark + ending])
    if ending == "s":
        return (*_of_word(stem), "be") if stem in _BEFORE_IS else (_singular(stem),)
    return (word,)


# Plurals and verb -s

_WITH_E = frozenset(read_word_list("with e"))
_SOFT = frozenset(read_word_list("soft"))
_OPEN = frozenset(read_word_list("open"))
_UNINFLECTED_WORDS = _SOFT | frozenset(read_word_list("kept"))
_IRREGULAR = dict(read_word_pairs("irregular"))
_VOWEL = re.compile("[aeiouy]")
_MIN_PLURAL_CHARS = 4


def _singular(word: str) -> str:
    """Return a word without plural or verb -s, unless the result could be another word."""
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if not word.endswith("s") or word.endswith(("ss", "us", "is")) or word in _UNINFLECTED_WORDS:
        return _ordinal(word)
    stem = word[:-1]
    if len(word) < _MIN_PLURAL_CHARS or not word.isascii() or not _VOWEL.search(stem):
        return word
    if stem.endswith(("a", "o", "ic")) and stem not in _OPEN:
        return word
    return _ordinal(_without_e(stem) if stem.endswith("e") and stem not in _WITH_E else stem)


def _without_e(stem: str) -> str:
    """Return the singular of a stem in -e, which may have been added with the -s."""
    if stem.endswith("ie"):
        return stem[:-2] + "y"
    if stem.endswith(("sse", "she", "che", "xe", "zze", "tze")) or stem[:-1] in _SOFT:
        return stem[:-1]
    if stem.endswith("use") and not stem.endswith(("ause", "ouse")):
        return stem[:-1]
    return stem


def _ordinal(word: str) -> str:
    return _ORDINALS.get(word, word)


_NORMALIZED_WORDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("the", "an", "please", "kindly"), ()),
    "is": ("be",),
    "are": ("be",),
    "were": ("was",),
    "has": ("have",),
    "does": ("do",),
    "percent": ("%",),
    **_CONTRACTIONS,
}

# Context-dependent words

_LABELS = frozenset(read_word_list("labels"))
_NO_NOUN = frozenset(read_word_list("no noun"))
_COUNTING = NUMBER_WORDS | _POWERS
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
    """Return whether an ``a`` is an article rather than a letter, as in plan A."""
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
    """Return the number that begins at a position, as text, and the position after it."""
    total = current = 0
    last: int | None = None
    while at < len(found) and found[at] in _COUNTING and _continues_number(found[at], last):
        last = _COUNTING[found[at]]
        if found[at] not in _POWERS:
            current += last
        elif last == 100:  # noqa: PLR2004
            current = max(current, 1) * last
        else:
            total, current = total + max(current, 1) * last, 0
        at += 1
    return at, str(total + current)


def _continues_number(word: str, last: int | None) -> bool:
    """Return whether a word continues a number that ended with ``last``: one does after twenty, but not after five."""
    if last is None or word in _POWERS:
        return True
    value = NUMBER_WORDS[word]
    return last >= 100 or (last >= 20 and 0 < value < 10)  # noqa: PLR2004


TextDifference = Literal["", "not", "numbers", "names", "words"]
"""Reason that keeps two texts apart; "" if none does."""
_NEGATIONS = frozenset(read_word_list("negations"))
_EXCLUSIVE = tuple(map(frozenset, read_word_groups("exclusive")))
_SMALL = frozenset(read_word_list("small"))
_TIME_WORDS = frozenset(read_word_list("times"))
_PREFIXES, _SUFFIXES = read_word_pairs("prefixes"), read_word_pairs("suffixes")
_FAMILY_ENDINGS = frozenset(("", *read_word_list("endings")))
_OF_VERBS = {form: verb for verb, *forms in read_word_groups("past") for form in forms}
_PAST = {past: verb for verb, past, *_ in read_word_groups("past")}
_MIN_STEM_CHARS = 3
_MIN_COMMON_CHARS = 4
_MIN_ROOT_CHARS = 2
_PROPER_NAME_PATTERN = re.compile(r"[^\W\d_]+")


def find_contrast_between_similar_texts(first: str, second: str) -> TextDifference:
    """Return what keeps two texts apart, however similar: "not", "numbers", "names" or "words"; "" if nothing does."""
    one, other = extract_meaningful_words(first), extract_meaningful_words(second)
    if _has_recased_identifier(first, second):
        return "names"
    if _counts(one, _NEGATIONS) != _counts(other, _NEGATIONS):
        return "not"
    if Counter(find_non_words(one)) != Counter(find_non_words(other)):
        return "numbers"
    if _other_names(first, second, one, other):
        return "names"
    in_first, in_second = _between(one, other)
    if _reordered(one, other) or _times(one) != _times(other) or _SMALL.issuperset((*in_first, *in_second)):
        return "words"
    return "words" if _excluding(one, other) or _instead(one, other) else ""


def find_negations(found: Sequence[str]) -> list[str]:
    """Return the negations of a wording, in order."""
    return [word for word in found if word in _NEGATIONS]


def find_numbers(found: Sequence[str]) -> list[str]:
    """Return the numbers of a wording in order, including codes and addresses with digits."""
    return [word for word in found if any(letter.isdigit() for letter in word)]


def find_non_words(found: Sequence[str]) -> list[str]:
    """Return the non-words of a wording: numbers, signs, codes, addresses and single letters."""
    return [word for word in found if not word.isalpha() or (len(word) == 1 and word.isascii() and word != "i")]


def find_proper_names(text: str) -> list[str]:
    """Return the case-folded words that are capitalized inside a sentence."""
    return [
        found[0].casefold()
        for found in _PROPER_NAME_PATTERN.finditer(text)
        if found[0][0].isupper() and _inside(text, found)
    ]


def _inside(text: str, found: re.Match[str]) -> bool:
    before = text[: found.start()].rstrip()
    return bool(before) and before[-1] not in ".!?\n"


def _has_recased_identifier(first: str, second: str) -> bool:
    """Return whether two texts contain the same identifier in different case, such as API_KEY and Api_Key."""
    in_first, in_second = ({*find_case_sensitive_tokens(text)} for text in (first, second))
    if in_first == in_second:
        return False
    return _recased(in_first - in_second, second) or _recased(in_second - in_first, first)


def _recased(cased: set[str], text: str) -> bool:
    return bool(cased) and not {each.casefold().lstrip("-") for each in cased}.isdisjoint(
        _WORD_TOKEN_PATTERN.findall(text.casefold())
    )


def _counts(found: Sequence[str], among: frozenset[str]) -> Counter[str]:
    return Counter(word for word in found if word in among)


def _times(found: Sequence[str]) -> Counter[str]:
    """Return the tense markers of a wording; "used to" counts as past."""
    return _counts(found, _TIME_WORDS) + Counter("used to" for pair in pairwise(found) if pair == ("used", "to"))


def _between(one: Sequence[str], other: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Return what remains of two wordings without their common prefix and suffix."""
    shorter = min(len(one), len(other))
    begin = next((at for at in range(shorter) if one[at] != other[at]), shorter)
    end = next((at for at in range(shorter - begin) if one[-1 - at] != other[-1 - at]), shorter - begin)
    return one[begin : len(one) - end], other[begin : len(other) - end]


def _other_names(first: str, second: str, one: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether each text has a name that the other lacks, or both have the same names in another order."""
    in_first, in_second = _of_names(first, one), _of_names(second, other)
    if any(name not in other for name in in_first) and any(name not in one for name in in_second):
        return True
    if one[1:] == other[1:] and first.lstrip()[:1].isupper() and second.lstrip()[:1].isupper():
        return True
    common = {*in_first} & {*in_second}
    return _firsts(one, common) != _firsts(other, common)


def _of_names(text: str, found: Sequence[str]) -> list[str]:
    return [name for each in find_proper_names(text) for name in extract_meaningful_words(each) if name in found]


def _firsts(found: Sequence[str], common: set[str]) -> list[str]:
    """Return the common words in the order of their first occurrence."""
    return [word for word in dict.fromkeys(found) if word in common]


def _instead(one: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether a text has words in place of other words, and they are not known to mean the same.

    Texts with a different structure are not decided here, because their words have no matching positions.
    """
    in_first, in_second = _unmatched(one, other)
    if not in_first or not in_second:
        return False
    blocks = zip(_between(one, other), (in_first, in_second), strict=True)
    return len(in_first) == len(in_second) == 1 or all({*block} <= {*left} for block, left in blocks)


def _unmatched(one: Sequence[str], other: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words of each text without a match in the other: no same word, form or synonym."""
    in_first, in_second = ([*(Counter(here) - Counter(there))] for here, there in ((one, other), (other, one)))
    in_first, in_second = (
        [word for word in each if word not in _SMALL and word.isalpha()] for each in (in_first, in_second)
    )
    left = [word for word in in_first if not any(_akin(word, against) for against in in_second)]
    return left, [word for word in in_second if not any(_akin(word, against) for against in in_first)]


@lru_cache(maxsize=1 << 14)
def _akin(word: str, other: str) -> bool:
    """Return whether two words are forms or derivations of the same word, or synonyms."""
    forms, others = _forms(word), _forms(other)
    if not forms.isdisjoint(others) or _means(word, other):
        return True
    return any(_derived(form, each) for form in forms for each in others)


def _means(word: str, other: str) -> bool:
    """Return whether two words or their base forms are synonyms."""
    others = _forms(other)
    return any(not others.isdisjoint(load_synonyms().get(form, ())) for form in _forms(word))


def _derived(word: str, other: str) -> bool:
    """Return whether two words share a stem and differ only in endings of one family."""
    shorter = min(len(word), len(other))
    common = next((at for at in range(shorter) if word[at] != other[at]), shorter)
    return any(
        word[at:] in _FAMILY_ENDINGS and other[at:] in _FAMILY_ENDINGS for at in range(_MIN_COMMON_CHARS, common + 1)
    )


def _is_past(word: str) -> bool:
    return word in _PAST or word.endswith("ed")


def _excluding(one: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether one text has a word where the other has one that excludes it."""
    in_first, in_second = {*one} - {*other}, {*other} - {*one}
    return any(_exclude(word, against) for word in in_first for against in in_second)


@lru_cache(maxsize=1 << 14)
def _exclude(word: str, other: str) -> bool:
    if _inflected(word, other) or _inflected(other, word):
        return True
    if _is_past(word) == _is_past(other) and _means(word, other):
        return False
    if any(word in line and other in line for line in _EXCLUSIVE):
        return True
    forms, others = _forms(word), _forms(other)
    if any(form in load_opposites().get(each, ()) for each in forms for form in others):
        return True
    return any(_turned(form, each) or _turned(each, form) for form in forms for each in others)


def _inflected(word: str, of: str) -> bool:
    """Return whether a word is the past tense, comparative or superlative of another."""
    if word in _PAST:
        return _PAST[word] == of
    return word.endswith(("ed", "er", "est")) and of in _forms(word)


def _turned(word: str, other: str) -> bool:
    """Return whether two words differ in a prefix or suffix that reverses their meaning."""
    for begin, turned in _PREFIXES:
        stem = word[len(begin) :]
        if len(stem) >= _MIN_STEM_CHARS and word.startswith(begin) and other == turned + stem:
            return True
    return any(
        word.endswith(end)
        and len(word) - len(end) >= _MIN_STEM_CHARS
        and other == word[: len(word) - len(end)] + turned
        for end, turned in _SUFFIXES
    )


@lru_cache(maxsize=1 << 12)
def _forms(word: str) -> frozenset[str]:
    """Return a word and its possible base forms."""
    return frozenset({word, *_roots(word)})


def _roots(word: str) -> Iterator[str]:
    if word in _OF_VERBS:
        yield _OF_VERBS[word]
    for ending in ("ing", "ed", "er", "est", "ly", "n"):
        stem = word.removesuffix(ending)
        if stem != word and len(stem) >= _MIN_ROOT_CHARS:
            yield stem
            yield stem + "e"
            if stem[-1] == stem[-2]:
                yield stem[:-1]
            if stem.endswith("i"):
                yield stem[:-1] + "y"


def _reordered(one: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether two texts have the same words in another order."""
    return one != other and Counter(one) == Counter(other)


TEXT_HASH_BYTES = 16
MAX_CACHED_TEXT_CHARS = 1_000
"""Maximum length of a text whose hash is kept in the large cache."""


def hash_normalized_text(text: str) -> bytes:
    """Return a 16-byte hash, equal for texts that differ only in case, whitespace and final punctuation.

    The case of `find_case_sensitive_tokens` counts.
    """
    return _short_hash(text) if len(text) <= MAX_CACHED_TEXT_CHARS else _hash(text)


def fingerprint_wording(text: str) -> bytes:
    """Return 16 bytes, equal for texts of the same wording; for long or wordless texts, the text hash."""
    if len(text) > MAX_COMPARED_CHARS:
        return hash_normalized_text(text)
    return _short_print(text) if len(text) <= MAX_CACHED_TEXT_CHARS else _long_print(text)


def _hash(text: str) -> bytes:
    return _digest("text", "\0".join((normalize_text_for_comparison(text), *find_case_sensitive_tokens(text))))


def _print(text: str) -> bytes:
    found = extract_meaningful_words(text)
    return (
        _digest("words", "\x1f".join((*found, *find_case_sensitive_tokens(text))))
        if found
        else hash_normalized_text(text)
    )


# Cached: storing a memory needs them five times, and the memory index once more, up to thousands of memories later.
_short_hash, _short_print = lru_cache(maxsize=1 << 13)(_hash), lru_cache(maxsize=1 << 13)(_print)
_long_print = lru_cache(maxsize=512)(_print)


def is_same_text(first: str, second: str) -> bool:
    """Return whether two texts say the same, word for word."""
    return fingerprint_wording(first) == fingerprint_wording(second) or hash_normalized_text(
        first
    ) == hash_normalized_text(second)


def find_text_difference_kind(first: str, second: str) -> TextDifference:
    """Return what keeps two texts from being equal: the first of negation, numbers, names and other words."""
    if is_same_text(first, second):
        return ""
    one, other = (
        extract_meaningful_words(first[:MAX_COMPARED_CHARS]),
        extract_meaningful_words(second[:MAX_COMPARED_CHARS]),
    )
    if find_negations(one) != find_negations(other):
        return "not"
    if find_numbers(one) != find_numbers(other):
        return "numbers"
    return "names" if _named_otherwise(first, second, one, other) else "words"


def find_consolidation_conflict(first: str, second: str) -> TextDifference:
    """Return what keeps similar texts from being consolidated. Unlike `find_text_difference_kind`, accept synonyms."""
    return (
        ""
        if is_same_text(first, second)
        else find_contrast_between_similar_texts(first[:MAX_COMPARED_CHARS], second[:MAX_COMPARED_CHARS])
    )


def _named_otherwise(first: str, second: str, one: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether the words that differ are names, judged by capitals; a text's first word may be one."""
    named = {*find_proper_names(first), *find_proper_names(second), *one[:1], *other[:1]}
    if sorted(one) == sorted(other):
        return True
    differing = {*one} ^ {*other}
    return bool(differing) and differing <= {word for name in named for word in extract_meaningful_words(name)}


def _digest(kind: str, text: str) -> bytes:
    return hashlib.sha256(f"{kind}\0{text}".encode(errors="surrogatepass")).digest()[:TEXT_HASH_BYTES]


def cluster_complete_linkage(pairs: Mapping[tuple[str, str], float]) -> list[list[str]]:
    """Cluster by complete linkage: return groups of at least two in which every two members are one of the pairs.

    The most similar pairs are joined first, and two groups merge once their least similar pair was seen. The result
    does not depend on the order of the pairs. Members and groups are sorted.
    """
    group_of: dict[str, str] = {}
    members: dict[str, list[str]] = {}
    met: dict[str, dict[str, int]] = {}
    for first, second in _best_first(pairs):
        one, other = (_group(each, group_of, members, met) for each in (first, second))
        if one == other:
            continue
        met[one][other] = met[other][one] = met[one].get(other, 0) + 1
        if met[one][other] == len(members[one]) * len(members[other]):
            _join(one, other, group_of, members, met)
    return sorted(sorted(group) for group in members.values() if len(group) > 1)


def _best_first(pairs: Mapping[tuple[str, str], float]) -> Iterable[tuple[str, str]]:
    ordered = {(min(pair), max(pair)): similarity for pair, similarity in pairs.items() if pair[0] != pair[1]}
    return sorted(ordered, key=lambda pair: (-ordered[pair], pair))


def _group(each: str, group_of: dict[str, str], members: dict[str, list[str]], met: dict[str, dict[str, int]]) -> str:
    if each not in group_of:
        group_of[each], members[each], met[each] = each, [each], {}
    return group_of[each]


def _join(
    one: str, other: str, group_of: dict[str, str], members: dict[str, list[str]], met: dict[str, dict[str, int]]
) -> None:
    """Merge the smaller of two groups into the other."""
    into, gone = (one, other) if len(members[one]) >= len(members[other]) else (other, one)
    for each in members.pop(gone):
        group_of[each] = into
        members[into].append(each)
    for third, count in met.pop(gone).items():
        del met[third][gone]
        if third != into:
            met[into][third] = met[third][into] = met[into].get(third, 0) + count
