"""What kgserve asks of who keeps the journals of several machines. `tests/cluster` holds each implementation to it.

Three things are needed, and nothing else is assumed: a log per store to which only who knows its end can append, small
entries that change by compare-and-set, and files that are put once.

Where an answer does not come, a request is made again under the same identity until the implementation's patience is
over, and then what is there is looked at. Nothing is guessed: who is not told that it worked has to look again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from kgserve.cluster.records import Logged, Position, Record, parted


class Log(Protocol):
    """The logs of all stores. What was appended is durable on most of the servers. Called by any thread."""

    def end(self, store: str) -> Position:
        """Position of a store's last record, 0 for none, as the log itself has it: never a copy that lags behind.

        Raises Unavailable.
        """
        ...

    def left(self, store: str, after: Position) -> Iterator[Logged]:
        """What there is after a position of a log that is torn: records that are whole, whatever is between them.

        Raises Unavailable.
        """
        ...

    def append(self, store: str, after: Position, record: Record) -> Position:
        """Append a record to a log whose last one is at ``after``; its position. For records that are not too large.

        This is the fence: once somebody else has appended, nothing of who does not know is taken any more.

        Raises Fenced when the last record is another one, and Unconfirmed when nobody could say in time. Of both, the
        record may be in the log, and is not acknowledged: who goes on has to read the log first.
        """
        ...

    def read(self, store: str, after: Position, to: Position) -> Iterator[Logged]:
        """The records after a position up to another one, in order, each of which names the one before it.

        Raises LogTorn when one is missing or damaged, or ``to`` lies before ``after``; and Unavailable.
        """
        ...

    @property
    def shards(self) -> int:
        """How many logs of some stores each there are, numbered from 0, which `recent` reads."""
        ...

    def latest(self, shard: int) -> Position:
        """Position of the last record of all stores of a shard, 0 for none. Raises Unavailable."""
        ...

    def recent(self, shard: int, after: Position) -> list[tuple[str, Logged]]:
        """Some records of a shard's stores after a position, in order, with the store of each; empty for nothing new.

        The last ones may be lacking, and be there when it is asked again; what is damaged is left out: records name the
        one before them. Raises Unavailable.
        """
        ...

    def trim(self, store: str, before: Position, *, erase: bool = False) -> None:
        """Let go of the records before a position; the last one stays. Raises Unavailable, and may be called again.

        With ``erase`` they are written over, where whoever keeps them can do that.
        """
        ...


class BootstrapSnapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """Files of all nodes, from which a store's log is read on: a snapshot, and what goes with it.

    They hold at least what the log has up to ``position``, the end of a frame with ``sequence``, and nothing that it
    has not. ``files`` are the names of `Blobs`, by paths in the store's folder; ``vectors`` is the size of the
    embeddings among them, in bytes.
    """

    sequence: int
    position: Position
    files: dict[str, str]
    vectors: int = 0


class Owner(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which node serves a store, where it is reached, and the how-manieth owner it is.

    ``description`` is what the store is, in the words of who serves it. What its log holds up to ``begins`` belonged to
    a store of the same name that was ``dropped``. ``bases`` are where reading may begin, oldest first; before the first
    of them the log may be trimmed. Of one that is ``coming`` the node alone has the files, which no log has as a whole.
    ``erasures`` counts how often something was erased: files from before an erasure still have that.
    """

    node: str
    epoch: int
    url: str
    description: bytes = b""
    begins: Position = 0
    dropped: bool = False
    bases: tuple[BootstrapSnapshot, ...] = ()
    coming: bool = False
    erasures: int = 0

    @property
    def oldest(self) -> Position:
        """From where on its log is there for certain."""
        return self.bases[0].position if self.bases else self.begins

    def outdates(self, begins: Position, position: Position, erasures: int) -> bool:
        """Whether a copy of the log from ``begins`` up to a position is of no use any more, or has what was erased."""
        return begins != self.begins or position < self.oldest or erasures < self.erasures


class Claim(msgspec.Struct, frozen=True):
    """What the registry says of a store, and the revision by which that is replaced."""

    owner: Owner
    revision: int


class Heartbeat(msgspec.Struct, frozen=True):
    """A node's sign of life, or, ``leaving``, its last one. ``run`` tells one process of it from the next.

    Who shows the ``token`` may do anything there, as nodes do in the name of who has asked them. Who is ``draining``
    takes no stores over. ``format`` is the newest of records that its program knows. Who is ``gone`` was silent for a
    lease, as this one saw it, since the beat of the revision.
    """

    node: str
    run: str
    url: str
    token: str = ""
    leaving: bool = False
    draining: bool = False
    format: int = 1
    gone: dict[str, int] = msgspec.field(default_factory=dict[str, int])


class Heard(msgspec.Struct, frozen=True):
    """The last beat of a node; the revision rises with each."""

    beat: Heartbeat
    revision: int


class RegistryEntry(msgspec.Struct, frozen=True):
    """Something that all nodes are to know, and the revision by which it is replaced."""

    data: bytes
    revision: int


class Registry(Protocol):
    """Who owns which store, which nodes are alive, and what all are to know: small entries, by compare-and-set."""

    def entries(self, after: int = 0) -> dict[str, RegistryEntry]:
        """What all are to know, by name, of a revision above another one. As `owners`. Raises Unavailable."""
        ...

    def put_entry(self, name: str, data: bytes, revision: int) -> int | None:
        """Replace an entry of a revision, as `claim`. A name has letters, digits and dots."""
        ...

    def owners(self, after: int = 0) -> dict[str, Claim]:
        """The claims with a revision above another one, of all stores that ever had an owner. Raises Unavailable.

        It may be a little old, and then also lack some.
        """
        ...

    def owner(self, store: str) -> Claim | None:
        """The present claim to a store. Raises Unavailable."""
        ...

    def claim(self, store: str, owner: Owner, revision: int) -> int | None:
        """Replace the claim of a revision, 0 for none; the new revision, or None if somebody else was first.

        Raises Unconfirmed when nobody could say in time: the claim may hold, so look again.
        """
        ...

    def beat(self, beat: Heartbeat, revision: int) -> int | None:
        """Replace a node's beat of a revision, as `claim`. None: another process beats under the same name."""
        ...

    def beats(self) -> dict[str, Heard]:
        """The last beat of each node. It may be a little old, and older than the one before. Raises Unavailable."""
        ...

    def seen_beats(self) -> dict[str, Heard]:
        """As `beats`, as far as some server has them: also while none can be taken. Empty where none answers."""
        ...


class Blobs(Protocol):
    """Files that are kept for all nodes, by name: put once, never changed."""

    def put(self, name: str, path: Path) -> bool:
        """Keep a file; False if there is one of this name, which stays as it is. Raises Unavailable."""
        ...

    def get(self, name: str, path: Path) -> None:
        """Write a file to ``path``. Raises NotFound, LogTorn when it is not as it was put, Unavailable, StorageFull."""
        ...

    def names(self, prefix: str) -> list[str]:
        """The names that begin with a prefix, in order. Raises Unavailable."""
        ...

    def drop(self, name: str, *, erase: bool = False) -> None:
        """Let go of a file, if there is one; ``erase`` as in `Log.trim`. Raises Unavailable."""
        ...


def append_whole(log: Log, store: str, after: Position, record: Record) -> Position:
    """Append a record of any size, in parts where it is large; where its last piece is. Raises what `append` does."""
    for part in parted(record):
        after = log.append(store, after, part)
    return after
