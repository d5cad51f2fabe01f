"""What tells two near texts apart: numbers, negation, names, their order, words that exclude each other."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Literal

from kgserve.model.vocabulary import lines, listed, opposites, pairs, synonyms
from kgserve.model.wording import words

Difference = Literal["", "not", "numbers", "names", "words"]
"""What keeps two texts apart; "" if nothing does."""
_NEGATIONS = frozenset(listed("negations"))
_EXCLUSIVE = tuple(map(frozenset, lines("exclusive")))
_SMALL = frozenset(listed("small"))
_TIMES = frozenset(listed("times"))
_PREFIXES, _SUFFIXES = pairs("prefixes"), pairs("suffixes")
_FAMILY = frozenset(("", *listed("endings")))
_OF_VERBS = {form: verb for verb, *forms in lines("past") for form in forms}
_PAST = {past: verb for verb, past, *_ in lines("past")}
_LEAST_STEM = 3
_LEAST_COMMON = 4
_LEAST_ROOT = 2
_NAME = re.compile(r"[^\W\d_]+")


def contrast(first: str, second: str) -> Difference:
    """What keeps two texts apart, however near they are: "not", "numbers", "names" or "words"; "" if nothing does."""
    one, other = words(first), words(second)
    if _counts(one, _NEGATIONS) != _counts(other, _NEGATIONS):
        return "not"
    if Counter(values(one)) != Counter(values(other)):
        return "numbers"
    if _other_names(first, second, one, other):
        return "names"
    mine, yours = _between(one, other)
    if _reordered(one, other) or _times(one) != _times(other) or _SMALL.issuperset((*mine, *yours)):
        return "words"
    return "words" if _excluding(one, other) or _instead(one, other) else ""


def negations(found: Sequence[str]) -> list[str]:
    """The negations of a wording, in order."""
    return [word for word in found if word in _NEGATIONS]


def numbers(found: Sequence[str]) -> list[str]:
    """The numbers of a wording, in order, with the codes and addresses that hold some."""
    return [word for word in found if any(letter.isdigit() for letter in word)]


def values(found: Sequence[str]) -> list[str]:
    """What a wording has besides words: numbers, signs, codes, addresses and single letters."""
    return [word for word in found if not word.isalpha() or (len(word) == 1 and word.isascii() and word != "i")]


def names(text: str) -> list[str]:
    """The words of a text that are written as names are, in one case: with a capital, and not at its beginning."""
    return [found[0].casefold() for found in _NAME.finditer(text) if found[0][0].isupper() and _inside(text, found)]


def _inside(text: str, found: re.Match[str]) -> bool:
    before = text[: found.start()].rstrip()
    return bool(before) and before[-1] not in ".!?\n"


def _counts(found: Sequence[str], among: frozenset[str]) -> Counter[str]:
    return Counter(word for word in found if word in among)


def _times(found: Sequence[str]) -> Counter[str]:
    """The marks of past and future; what somebody used to do is past."""
    return _counts(found, _TIMES) + Counter("used to" for pair in pairwise(found) if pair == ("used", "to"))


def _between(one: Sequence[str], other: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """What is left of two wordings without the words that both begin and end with."""
    shorter = min(len(one), len(other))
    begin = next((at for at in range(shorter) if one[at] != other[at]), shorter)
    end = next((at for at in range(shorter - begin) if one[-1 - at] != other[-1 - at]), shorter - begin)
    return one[begin : len(one) - end], other[begin : len(other) - end]


def _other_names(first: str, second: str, one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether each text names what the other does not, or both name the same in another order."""
    mine, yours = _of_names(first, one), _of_names(second, other)
    if any(name not in other for name in mine) and any(name not in one for name in yours):
        return True
    if one[1:] == other[1:] and first.lstrip()[:1].isupper() and second.lstrip()[:1].isupper():
        return True
    common = {*mine} & {*yours}
    return _firsts(one, common) != _firsts(other, common)


def _of_names(text: str, found: Sequence[str]) -> list[str]:
    return [name for each in names(text) for name in words(each) if name in found]


def _firsts(found: Sequence[str], common: set[str]) -> list[str]:
    """Words in the order in which they are first met."""
    return [word for word in dict.fromkeys(found) if word in common]


def _instead(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether a text has words in the place of other words that do not say the same, as far as that is known.

    Texts that are put together in different ways are left to their likeness: words that differ have no place there.
    """
    mine, yours = _unmatched(one, other)
    if not mine or not yours:
        return False
    blocks = zip(_between(one, other), (mine, yours), strict=True)
    return len(mine) == len(yours) == 1 or all({*block} <= {*left} for block, left in blocks)


def _unmatched(one: Sequence[str], other: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of each text that the other has none for: not the same, no other form, and none that means it."""
    mine, yours = ([*(Counter(here) - Counter(there))] for here, there in ((one, other), (other, one)))
    mine, yours = ([word for word in each if word not in _SMALL and word.isalpha()] for each in (mine, yours))
    left = [word for word in mine if not any(_akin(word, against) for against in yours)]
    return left, [word for word in yours if not any(_akin(word, against) for against in mine)]


@lru_cache(maxsize=1 << 14)
def _akin(word: str, other: str) -> bool:
    """Whether two words are forms or derivations of one, or mean the same."""
    forms, others = _forms(word), _forms(other)
    if not forms.isdisjoint(others) or _means(word, other):
        return True
    return any(_derived(form, each) for form in forms for each in others)


def _means(word: str, other: str) -> bool:
    """Whether two words, or what they are forms of, may stand for each other."""
    others = _forms(other)
    return any(not others.isdisjoint(synonyms().get(form, ())) for form in _forms(word))


def _derived(word: str, other: str) -> bool:
    """Whether two words have a beginning in common, and behind it nothing but endings of one family."""
    shorter = min(len(word), len(other))
    common = next((at for at in range(shorter) if word[at] != other[at]), shorter)
    return any(word[at:] in _FAMILY and other[at:] in _FAMILY for at in range(_LEAST_COMMON, common + 1))


def _is_past(word: str) -> bool:
    return word in _PAST or word.endswith("ed")


def _excluding(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether one text has a word, and the other in its place one that excludes it."""
    mine, yours = {*one} - {*other}, {*other} - {*one}
    return any(_exclude(word, against) for word in mine for against in yours)


@lru_cache(maxsize=1 << 14)
def _exclude(word: str, other: str) -> bool:
    if _inflected(word, other) or _inflected(other, word):
        return True
    if _is_past(word) == _is_past(other) and _means(word, other):
        return False
    if any(word in line and other in line for line in _EXCLUSIVE):
        return True
    forms, others = _forms(word), _forms(other)
    if any(form in opposites().get(each, ()) for each in forms for form in others):
        return True
    return any(_turned(form, each) or _turned(each, form) for form in forms for each in others)


def _inflected(word: str, of: str) -> bool:
    """Whether a word is the past, the comparative or the superlative of another."""
    if word in _PAST:
        return _PAST[word] == of
    return word.endswith(("ed", "er", "est")) and of in _forms(word)


def _turned(word: str, other: str) -> bool:
    """Whether two words differ in a prefix or an ending that turns what they say."""
    for begin, turned in _PREFIXES:
        stem = word[len(begin) :]
        if len(stem) >= _LEAST_STEM and word.startswith(begin) and other == turned + stem:
            return True
    return any(
        word.endswith(end) and len(word) - len(end) >= _LEAST_STEM and other == word[: len(word) - len(end)] + turned
        for end, turned in _SUFFIXES
    )


@lru_cache(maxsize=1 << 12)
def _forms(word: str) -> frozenset[str]:
    """A word and what it may be a form of: the verb of a past or of an -ing, the adjective of an adverb."""
    return frozenset({word, *_roots(word)})


def _roots(word: str) -> Iterator[str]:
    if word in _OF_VERBS:
        yield _OF_VERBS[word]
    for ending in ("ing", "ed", "er", "est", "ly", "n"):
        stem = word.removesuffix(ending)
        if stem != word and len(stem) >= _LEAST_ROOT:
            yield stem
            yield stem + "e"
            if stem[-1] == stem[-2]:
                yield stem[:-1]
            if stem.endswith("i"):
                yield stem[:-1] + "y"


def _reordered(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether two texts say the same words in another order."""
    return one != other and Counter(one) == Counter(other)
