"""Notices of a search: what its caller must know to read the hits."""

from __future__ import annotations

from kgserve.projections.text_indexes import CurrentAndPastTextIndexes

NO_WORD_FOUND = "no word of the query was found"
NEAREST_BY_MEANING = f"{NO_WORD_FOUND}; nearest by meaning"
NEAREST_BY_LETTERS = f"{NO_WORD_FOUND}; nearest by letters"
"""The notice of a server without an embedding model, whose vectors compare letters."""


def explain_index_lag(commits: int) -> str:
    """Return the notice of a search whose indexes lack some commits."""
    behind = f"{commits:,} commit{'' if commits == 1 else 's'}"
    return f"the indexes lag {behind} behind; the newest entries may be missing"


class SearchNotices:
    """Notices of one search, or of several whose hits form one answer."""

    def __init__(self) -> None:
        self._searched_words = self._found_words = False
        self._builds: dict[str, None] = {}

    def record_words(self, *, found: bool) -> None:
        """Record a search by words and meaning, and whether any hit has a word of the query."""
        self._searched_words = True
        self._found_words = self._found_words or found

    def record_builds(self, indexes: CurrentAndPastTextIndexes, *, meaning: bool = True) -> None:
        """Record which of the searched indexes still lack hits; ``meaning``: vectors are searched, too."""
        if indexes.keyword.is_incomplete:
            self._builds[f"{indexes.keyword.explain_build()}; hits by words are missing"] = None
        if meaning and indexes.has_vectors and indexes.vector.is_incomplete:
            self._builds[f"{indexes.vector.explain_build()}; hits by meaning are missing"] = None

    def text(self, *, has_hits: bool, degraded: bool) -> str | None:
        """Return the notice of the answer, None if it needs none."""
        if self._builds:
            return ". ".join(self._builds)
        if has_hits and self._searched_words and not self._found_words:
            return NEAREST_BY_LETTERS if degraded else NEAREST_BY_MEANING
        return None
