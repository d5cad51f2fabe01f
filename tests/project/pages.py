"""README.md and the documentation's pages as tests read them: code blocks with marks that say what is done with each.

The mark is a comment on the line before a block:

- ``run``: a block of bash or python that is run and must succeed; curl fails when a server refuses.
- ``refused``: bash in which every curl is answered with an error.
- ``answer``: JSON values that are within what the block before it has printed, one after another.
- ``prints``: lines that are among those that the block before it has printed.
- ``shown: REASON``: not run, for a reason that is given.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from scripts.pages import DOCS, PAPERS

LANGUAGES = {
    "run": {"bash", "python"},
    "refused": {"bash"},
    "answer": {"json"},
    "prints": {"text"},
}
FENCE = re.compile(
    r"^(?:<!-- (?P<mark>[^>]*) -->\n)?(?P<fence>`{3,})(?P<language>[^\n`]*)\n(?P<text>.*?)^(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)


class Block(msgspec.Struct, frozen=True):
    """A code block of a page: its mark, language, text, and the line that it begins at."""

    mark: str
    language: str
    text: str
    line: int

    @property
    def fault(self) -> str | None:
        """Return the fault of its mark, or None."""
        kind, colon, reason = self.mark.partition(": ")
        if kind == "shown":
            return None if colon and reason.strip() else "`shown` needs a reason"
        if kind not in LANGUAGES:
            return f"its mark is {self.mark!r}; one of {', '.join(LANGUAGES)} or `shown: reason` must stand before it"
        return None if self.language in LANGUAGES[kind] else f"{kind} is not for {self.language or 'no language'}"


def blocks_of(page: Path) -> Iterator[Block]:
    """The code blocks of a page, in order."""
    text = page.read_text()
    for found in FENCE.finditer(text):
        line = text.count("\n", 0, found.start("fence")) + 1
        yield Block((found["mark"] or "").strip(), found["language"].strip(), found["text"], line)


def pages() -> list[Path]:
    """Every page of the documentation."""
    return sorted(DOCS.rglob("*.md"))


MARKED = [*pages(), *PAPERS]
"""Files with marked code blocks."""
