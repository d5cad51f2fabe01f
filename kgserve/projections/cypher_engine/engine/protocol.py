"""What the server and an engine's process say to each other: a request, and the answer to it, one after the other.

Both are MessagePack on a socket of the machine, with their length before them. Sums are 128 bits and go as text.
"""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import msgspec

from kgserve.cypher.guard import Statement
from kgserve.cypher.writes import WriteScope
from kgserve.errors import FieldError
from kgserve.platform.codecs import msgpack_decoder
from kgserve.storage.model.change import NetChange, StoreState
from kgserve.storage.model.digest import Stated
from kgserve.storage.model.fields import ColumnSet
from kgserve.storage.model.rows import EdgeKey, EdgeRow, LinkKey, LinkRow, NodeRow

FORK_REQUEST = b"fork"
"""What a nursery is sent with the ends of a new process's channels; it answers with the number of the process."""


class State(Stated, frozen=True, array_like=True):
    """A `StoreState` on its way."""


class FileOptions(msgspec.Struct, frozen=True):
    """What an engine's file is opened with: page cache in bytes, threads per statement.

    ``memory_bytes`` is what its process may take beside the page cache; 0 sets no bound.
    """

    cache_bytes: int = 512 << 20
    threads: int = 2
    memory_bytes: int = 0


class Open(msgspec.Struct, frozen=True, tag=True):
    """Open a file, which is then the process's own."""

    path: str
    options: FileOptions


class Opened(msgspec.Struct, frozen=True):
    """A file that is open: the state it holds, its columns, if its schema is the present one."""

    state: State
    width: ColumnSet
    current: bool


class Change(msgspec.Struct, frozen=True, tag=True):
    """Apply a net change in one transaction, and record the state that it leads to, if there is one.

    Links are for files that have tables for them.
    """

    state: State | None
    nodes_created: list[NodeRow]
    nodes_updated: list[NodeRow]
    nodes_deleted: list[str]
    remade: list[str]
    edges_created: list[EdgeRow]
    edges_updated: list[EdgeRow]
    edges_deleted: list[EdgeKey]
    links_created: list[LinkRow] = []
    links_updated: list[LinkRow] = []
    links_deleted: list[LinkKey] = []

    @classmethod
    def of(cls, net: NetChange, state: StoreState | None, *, linked: bool) -> Change:
        """What is sent for a net change, with its links or without."""
        links = net if linked else NetChange()
        return cls(
            state and State.of(state),
            [*net.nodes_created.values()],
            [*net.nodes_updated.values()],
            [*net.nodes_deleted],
            [*net.remade],
            [*net.edges_created.values()],
            [*net.edges_updated.values()],
            [*net.edges_deleted],
            [*links.links_created.values()],
            [*links.links_updated.values()],
            [*links.links_deleted],
        )

    @property
    def net(self) -> NetChange:
        """The net change that was meant."""
        net = NetChange()
        net.nodes_created = {row.id: row for row in self.nodes_created}
        net.nodes_updated = {row.id: row for row in self.nodes_updated}
        net.nodes_deleted, net.remade = set(self.nodes_deleted), set(self.remade)
        net.edges_created = {row.key: row for row in self.edges_created}
        net.edges_updated = {row.key: row for row in self.edges_updated}
        net.edges_deleted = set(self.edges_deleted)
        net.links_created = {row.key: row for row in self.links_created}
        net.links_updated = {row.key: row for row in self.links_updated}
        net.links_deleted = set(self.links_deleted)
        return net


class Build(msgspec.Struct, frozen=True, tag=True):
    """Make a new file from a folder of rows and close it; it has the columns of a ``width`` in any case."""

    path: str
    rows: str
    state: State
    options: FileOptions
    width: ColumnSet


class Make(msgspec.Struct, frozen=True, tag=True):
    """Make a new file of few rows, and leave it open."""

    path: str
    rows: Change
    state: State
    options: FileOptions
    width: ColumnSet


class Query(msgspec.Struct, frozen=True, tag=True):
    """Run a statement of our own for so many seconds at most, 0 for any time; all its rows."""

    text: str
    parameters: dict[str, Any] = {}
    seconds: float = 0.0


class Read(msgspec.Struct, frozen=True, tag=True):
    """Run a statement of a caller's for so many seconds at most, 0 for any time, and send its rows.

    Where it ``writes`` it may change the file of this process, within a trial.
    """

    statement: Statement
    seconds: float
    most: int | None
    writes: bool = False


class RowsPart(msgspec.Struct, frozen=True):
    """A piece of a statement's rows, each an array in JSON and a line: ``count`` end in it, ``more`` may follow."""

    lines: bytes
    count: int
    more: bool


class Head(msgspec.Struct, frozen=True):
    """What a statement answers: columns, their types, how many rows there are, and the first of them."""

    columns: list[str]
    types: list[str]
    total: int
    first: RowsPart


class Next(msgspec.Struct, frozen=True, tag=True):
    """Send the next rows."""


class Leave(msgspec.Struct, frozen=True, tag=True):
    """Send no more rows of this statement."""


class Dump(msgspec.Struct, frozen=True, tag=True):
    """Write all rows to a folder, from one snapshot; the state they are of."""

    folder: str


class Try(msgspec.Struct, frozen=True, tag=True):
    """Begin a trial: remember the file as it is, for a statement is to change it."""


class Compare(msgspec.Struct, frozen=True, tag=True):
    """What is not as it was when the trial began, within reach of the statement.

    There were so many ``nodes`` and ``edges``; ``folder`` is for rows on the way. In a file that is ``new`` nothing is
    doubtful.
    """

    reach: WriteScope
    nodes: int
    edges: int
    folder: str
    new: bool


class Changed(msgspec.Struct, frozen=True):
    """A row as it is now and as it was, each by field; a value may be None, for a statement may leave it out.

    Extras are fields like others; times are microseconds, lists JSON.
    """

    now: dict[str, Any]
    before: dict[str, Any] | None

    @property
    def edge_key(self) -> EdgeKey:
        """The key of an edge."""
        return (self.now["source"], self.now["target"], self.now["relation_type"])


class Difference(msgspec.Struct, frozen=True):
    """Rows that are new or other than before, and the keys of those that are gone.

    ``doubled`` are keys that more than one edge has now.
    """

    nodes: list[Changed]
    edges: list[Changed]
    nodes_gone: list[str]
    edges_gone: list[EdgeKey]
    doubled: list[EdgeKey]


NO_DIFFERENCE = Difference(nodes=[], edges=[], nodes_gone=[], edges_gone=[], doubled=[])


class Doubtful(Exception):
    """A copy that has been written to before does not hold what it should: try the statement on a new one."""


class Compared(msgspec.Struct, frozen=True):
    """What a statement has changed; where the engine met rows twice it is right but not ``sound``."""

    difference: Difference
    sound: bool


class Tried(msgspec.Struct, frozen=True, tag=True):
    """End a trial; what it has changed stays."""


class Interrupt(msgspec.Struct, frozen=True, tag=True):
    """Stop the statement that runs on a channel, if it is still that of its so manieth request.

    It comes another way than requests do: without the number it could meet the next one.
    """

    channel: int
    request: int


class Ping(msgspec.Struct, frozen=True, tag=True):
    """Say that the process still runs."""


class Close(msgspec.Struct, frozen=True, tag=True):
    """Close the file, so that it can be opened as it is."""


_OfFiles = Build | Make | Open | Change | Dump | Close
_OfStatements = Query | Read | Next | Leave | Try | Compare | Tried | Interrupt | Ping
Request = _OfFiles | _OfStatements


class Done(msgspec.Struct, frozen=True, tag=True):
    """It was done; what was asked for."""

    value: msgspec.Raw


class Failed(msgspec.Struct, frozen=True, tag=True):
    """It was not: the kind of the error, by the name of its class, its message, and the faults of an input."""

    kind: str
    message: str
    errors: list[FieldError] = []


encode = msgspec.msgpack.Encoder().encode


def receive_request(connection: Connection) -> Request:
    """The next request. Raises EOFError when the server is gone."""
    return msgpack_decoder(Request).decode(connection.recv_bytes())


def receive_reply(connection: Connection) -> Done | Failed:
    """The answer to a request. Raises EOFError when the process is gone."""
    return msgpack_decoder(Done | Failed).decode(connection.recv_bytes())
