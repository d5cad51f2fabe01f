"""Queries of the keyword index: terms with alternatives, phrases, prefixes and misspelt words."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec
import tantivy

from kgserve.platform.text.query_analyzer import QueryTerm

# Tags belong to the summary field, as do type, source and context of memories. Each field costs a byte per entity, and
# a lookup per query word.
TEXT_FIELDS = ("content", "name", "summary")
UNORDERED_FIELDS = frozenset({"name"})
"""Fields without positions, which phrases are not searched in."""
MAX_PREFIX_TERMS = 50
ALTERNATIVE_WEIGHT = 0.9
"""Factor of the terms that a word has in further languages or spellings."""
PREFIX_WEIGHT = 0.3
"""Factor of words that begin with the last word of a query."""
MIN_FUZZY_CHARS = 5
"""Minimum length of a word that is also found misspelt, by one letter or two letters in the wrong order."""
MAX_FUZZY_WORDS = 8
FUZZY_SCORE = 0.5
"""Score of a misspelt word; that of a rare word is above 1."""
_MIN_STEM_CHARS = 3
_MAX_ENDING_CHARS = 4

_Clause = tuple[tantivy.Occur, tantivy.Query]

QueryInterpretation = Literal["plain", "forms", "content", "syntax"]
"""Interpretation of a query.

``plain`` matches its words, ``forms`` also their other word forms, ``content`` does the same without function words,
and ``syntax`` parses tantivy's query language.
"""


class KeywordQuery(msgspec.Struct, frozen=True):
    """Query by words; with ``prefix`` its last word also matches words that begin with it."""

    text: str
    reading: QueryInterpretation = "plain"
    prefix: bool = False


def compute_bm25_idf(documents: int, holding: int) -> float:
    """Return the inverse document frequency of a word (BM25)."""
    return math.log1p((documents - holding + 0.5) / (holding + 0.5))


class KeywordQueryBuilder:
    """Builder of the tantivy query for one search."""

    def __init__(self, schema: tantivy.Schema, searcher: tantivy.Searcher, documents: int) -> None:
        """``documents`` is the number of texts, as BM25 counts them."""
        self._schema = schema
        self._searcher = searcher
        self._documents = documents
        self._frequencies: dict[tuple[str, str], int] = {}

    def frequency(self, field: str, term: str) -> int:
        """Return the number of texts that contain a term in a field."""
        found = self._frequencies.get((field, term))
        if found is None:
            found = self._frequencies[field, term] = self._searcher.doc_freq(field, term)
        return found

    def is_known(self, term: QueryTerm) -> bool:
        """Return whether any text contains a word of the query."""
        return any(self.frequency(field, stem) for stem in term.stems for field in TEXT_FIELDS)

    def match_any(
        self, terms: Iterable[QueryTerm], factors: Mapping[tuple[str, str], float], prefixes: Sequence[str] = ()
    ) -> tantivy.Query | None:
        """Return a query for texts with any of the terms; words that no text contains also match misspelt.

        ``factors`` are further weights by field and term. ``prefixes`` are beginnings of words that match as well.
        """
        clauses: list[tantivy.Query] = []
        for term in terms:
            found = [*self._phrases(term)] if term.phrase else [*self._words(term, factors)]
            if (
                not found
                and is_fuzzy_searchable_term(term)
                and not any((field, stem) in factors for stem in term.stems for field in TEXT_FIELDS)
            ):
                found = [*self._misspelt(term)]
            clauses += found
        for prefix in prefixes:
            clauses += self._with_prefix(prefix)
        return _any_of(clauses)

    def match_misspelt(self, terms: Iterable[QueryTerm]) -> tantivy.Query | None:
        """Return a query for texts with words that differ from known words of the query by one edit."""
        words = [term for term in terms if is_fuzzy_searchable_term(term) and self.is_known(term)][:MAX_FUZZY_WORDS]
        return _any_of([clause for term in words for clause in self._misspelt(term)])

    def _words(self, term: QueryTerm, factors: Mapping[tuple[str, str], float]) -> Iterator[tantivy.Query]:
        for field in TEXT_FIELDS:
            parts = [
                self._term(
                    field, stem, (ALTERNATIVE_WEIGHT if at else 1.0) * term.weight * factors.get((field, stem), 1.0)
                )
                for at, stem in enumerate(term.stems)
                if self.frequency(field, stem)
            ]
            if parts:
                yield parts[0] if len(parts) == 1 else tantivy.Query.disjunction_max_query(parts)

    def _phrases(self, term: QueryTerm) -> Iterator[tantivy.Query]:
        for field in TEXT_FIELDS:
            if field not in UNORDERED_FIELDS and all(self.frequency(field, each) for each in term.phrase):
                phrase = tantivy.Query.phrase_query(self._schema, field, [*term.phrase])
                yield tantivy.Query.boost_query(phrase, term.weight)

    def _misspelt(self, term: QueryTerm) -> Iterator[tantivy.Query]:
        for stem in dict.fromkeys((term.stems[0], term.word)):
            for field in TEXT_FIELDS:
                fuzzy = tantivy.Query.fuzzy_term_query(self._schema, field, stem)
                yield tantivy.Query.const_score_query(fuzzy, FUZZY_SCORE * term.weight)

    def _with_prefix(self, prefix: str) -> Iterator[tantivy.Query]:
        for field in TEXT_FIELDS:
            found = self._searcher.terms_with_prefix(field, prefix, limit=MAX_PREFIX_TERMS)
            terms = {term: count for term, count in found if term != prefix}
            if not terms:
                terms = self._stems_of_prefix(field, prefix)
            exact = self.frequency(field, prefix)
            least = compute_bm25_idf(self._documents, exact) if exact else math.inf
            parts = [
                self._term(field, term, PREFIX_WEIGHT * min(1.0, least / compute_bm25_idf(self._documents, count)))
                for term, count in terms.items()
            ]
            if parts:
                yield tantivy.Query.disjunction_max_query(parts)

    def _stems_of_prefix(self, field: str, prefix: str) -> dict[str, int]:
        """Return stems that a prefix extends, such as run for running."""
        least = max(_MIN_STEM_CHARS, len(prefix) - _MAX_ENDING_CHARS)
        stems = (prefix[:length] for length in range(len(prefix) - 1, least - 1, -1))
        return next(({stem: count} for stem in stems if (count := self.frequency(field, stem))), {})

    def _term(self, field: str, term: str, weight: float) -> tantivy.Query:
        query = tantivy.Query.term_query(self._schema, field, term)
        return query if weight == 1.0 else tantivy.Query.boost_query(query, weight)


def is_fuzzy_searchable_term(term: QueryTerm) -> bool:
    """Return whether a word of a query is also searched misspelt."""
    return len(term.word) >= MIN_FUZZY_CHARS and term.word.isalpha() and term.weight >= 1.0


def _any_of(clauses: Collection[tantivy.Query]) -> tantivy.Query | None:
    if not clauses:
        return None
    return tantivy.Query.boolean_query([(tantivy.Occur.Should, clause) for clause in clauses])
