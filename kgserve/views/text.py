"""An entity as the indexes take it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import xxhash

from kgserve.model.rows import NodeRow
from kgserve.views.filters import Marks, marks_of

_encode = msgspec.msgpack.Encoder().encode


class Text(msgspec.Struct, frozen=True):
    """An entity as the indexes take it: its texts have held since a commit, and for past ones until another."""

    id: str
    type: str
    content: str
    since: int = 0
    summary: str = ""
    marks: Marks | None = None
    until: int | None = None

    @classmethod
    def of(cls, row: NodeRow, since: int | None = None, until: int | None = None) -> Text:
        """The texts of a state, which has held since its own commit if nothing else is said."""
        summary = row.extras.summary if row.extras else ""
        first = row.sequence if since is None else since
        return cls(row.id, row.type, row.content, first, summary, marks_of(row.extras), until)

    @property
    def tags(self) -> Sequence[str]:
        """Its tags."""
        return self.marks.tags if self.marks else ()

    @property
    def has_words(self) -> bool:
        """Whether there is anything to find it by."""
        return bool(self.content or self.summary or self.tags)

    @property
    def key(self) -> str:
        """What names it in an index: one entity may have several past texts."""
        return self.id if self.until is None else f"{self.id}\0{self.since}\0{self.says.hex()}"

    @property
    def says(self) -> bytes:
        """A checksum of all but when it held."""
        return xxhash.xxh3_128_digest(_encode((self.type, self.content, self.summary, self.marks)))


class PastKey(NamedTuple):
    """A key of a past text, taken apart."""

    id: str
    since: int
    says: str


def past_key(key: str) -> PastKey:
    """The parts of the key that a past text has."""
    node_id, since, says = key.rsplit("\0", 2)
    return PastKey(node_id, int(since), says)
