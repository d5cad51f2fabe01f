"""Analysis of texts and queries into index terms. Index, queries and term scores use the same code."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
from py_rust_stemmers import SnowballStemmer

ANALYZER_VERSION = "1"
"""Version of the analysis. Indexes of another version are filled again."""

_WORD = re.compile(r"[^\W_]+")
_stem = SnowballStemmer("english").stem_word


class QueryTerm(msgspec.Struct, frozen=True):
    """Word of a query: the terms that it may have in the index, and the factor of its score."""

    stems: tuple[str, ...]
    weight: float


def analyze(text: str, language: str) -> list[str]:  # noqa: ARG001
    """Return the index terms of a text in a language."""
    return [_stem(word.lower()) for word in _WORD.findall(text)]


def analyze_query(query: str, languages: Sequence[str]) -> list[QueryTerm]:  # noqa: ARG001
    """Return the words of a query, stemmed in each of the languages."""
    return [QueryTerm((term,), 1.0) for term in analyze(query, "en")]
