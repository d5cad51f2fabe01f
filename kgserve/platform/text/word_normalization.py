"""Folding of words for matching: case, accents, vowel points, and letters that are often written alike.

Marks that make letters stay, as in most Indic scripts, in Japanese, and in Cyrillic й and ї.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from kgserve.platform.text.wordlists import load_han_simplification_table

MAX_CACHED_WORDS = 1 << 15
_LETTERS = str.maketrans(
    {
        "\u0131": "i", "ł": "l", "ø": "o", "đ": "d", "ð": "d", "þ": "th", "æ": "ae", "œ": "oe", "ħ": "h", "ŧ": "t",
        "ŋ": "n", "ĸ": "k", "ƒ": "f", "ɨ": "i", "\u02bb": "", "ə": "e",
        # Greek final sigma, Ukrainian ghe with upturn, Arabic alef wasla, Devanagari candrabindu
        "\u03c2": "\u03c3", "\u0491": "\u0433", "\u0671": "\u0627", "\u0901": "\u0902",
    }
)  # fmt: skip
# Letters of Arabic script that texts and keyboards interchange; the folded form alone is indexed.
_ARABIC_LETTERS = str.maketrans("\u0649\u06cc\u06a9\u0629\u06c1\u06be\u06d5\u06c0", "\u064a\u064a\u0643" + 5 * "\u0647")
# Marks without which a word is often written, after decomposition, by the letters that they follow.
_OPTIONAL_MARKS = re.compile(
    "(?<=[a-z\u03b1-\u03c9\u0131łøđæœ\u0300-\u036f])[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff]+"  # Latin, Greek
    "|(?<=\u0435)\u0308"  # ё
    "|(?<=[\u0430-\u04ff])[\u0300\u0301]"  # stress in Cyrillic
    "|[\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7]"  # Hebrew points
    "|[\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed]"  # Arabic points
    "|[\u0711\u0730-\u074a]"  # Syriac points
    "|\u093c"  # nukta in Devanagari
)
_DEVANAGARI_NASAL = re.compile("[\u0919\u091e\u0923\u0928\u092e]\u094d(?=[\u0915-\u0939])")


@lru_cache(maxsize=MAX_CACHED_WORDS)
def fold_word(word: str) -> str:
    """Return a word in NFKC with case folded, accents removed, and similar letters unified."""
    if word.isascii():
        return word.lower()
    marked = unicodedata.normalize("NFD", word.casefold())
    folded = _OPTIONAL_MARKS.sub("", marked).translate(_LETTERS).translate(_ARABIC_LETTERS)
    return unicodedata.normalize("NFC", _DEVANAGARI_NASAL.sub("\u0902", folded))


@lru_cache(maxsize=MAX_CACHED_WORDS)
def casefold_without_accents(word: str) -> str:
    """Return a word in NFKC with case folded and accents removed, with its letters unchanged."""
    return unicodedata.normalize("NFC", _OPTIONAL_MARKS.sub("", unicodedata.normalize("NFD", word.casefold())))


@lru_cache(maxsize=MAX_CACHED_WORDS)
def get_accented_form(word: str) -> str:
    """Return a word in NFKC in lower case with its accents; "" if folding removes none."""
    if word.isascii():
        return ""
    exact = word.lower().replace("\u03c2", "\u03c3").translate(_ARABIC_LETTERS)
    return "" if exact == fold_word(word) else exact


def simplify_han_characters(run: str) -> str:
    """Return a run of Chinese, Japanese or the like with simplified Han characters."""
    return run.translate(load_han_simplification_table())
