"""The words that can be completed: Cypher's, and those of the store in use."""

from __future__ import annotations

import time

import msgspec

from kgserve.cypher import words
from kgserve.errors import KgserveError
from kgserve.model.stores import StoreStats
from kgserve.shell.session import Session

FRESH = 10.0
"""Seconds for which the types of a store are not asked for again, unless something was written."""

KEYWORDS = (
    "ALL", "AND", "AS", "ASC", "BY", "CALL", "CASE", "CONTAINS", "COUNT", "CREATE", "DELETE", "DESC", "DETACH",
    "DISTINCT", "ELSE", "END", "ENDS", "EXISTS", "FALSE", "IN", "IS", "LIMIT", "MATCH", "MERGE", "NOT", "NULL",
    "ON", "OPTIONAL", "OR", "ORDER", "RETURN", "SET", "SHORTEST", "SKIP", "STARTS", "THEN", "TRUE", "UNION",
    "UNWIND", "WHEN", "WHERE", "WITH", "XOR", "YIELD",
)  # fmt: skip
FUNCTIONS = tuple(sorted(words.ALLOWED))
PROCEDURES = tuple(sorted(words.CALLS))


class Words(msgspec.Struct, frozen=True):
    """What is completed differently from store to store, most frequent first."""

    node_types: tuple[str, ...] = ()
    relation_types: tuple[str, ...] = ()


class Vocabulary:
    """The words of the session's store, asked for when they are needed. What the server refuses is left empty."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._words = Words()
        self._known: tuple[str | None, int] = (None, -1)
        self._since = 0.0

    def words(self) -> Words:
        """The types of the store in use."""
        wanted = (self.session.store, self.session.writes)
        if wanted != self._known or time.monotonic() - self._since > FRESH:
            self._words = self._asked(self.session.store)
            self._known, self._since = wanted, time.monotonic()
        return self._words

    def stores(self) -> list[str]:
        """The names of the server's stores."""
        try:
            server = self.session.server
            return [each.name for each in server.stores()] if server.connected else []
        except KgserveError:
            return []

    def _asked(self, store: str | None) -> Words:
        try:
            server = self.session.server
            return Words() if store is None or not server.connected else _by_frequency(server.stats(store))
        except KgserveError:
            return Words()


def _by_frequency(stats: StoreStats) -> Words:
    def ordered(counts: dict[str, int]) -> tuple[str, ...]:
        return tuple(sorted(counts, key=lambda name: (-counts[name], name)))

    return Words(ordered(stats.types), ordered(stats.relation_types))
