"""Messages between the server and an engine process: a request and its reply, in strict alternation.

Both are length-prefixed MessagePack on a local socket. Digests have 128 bits and are sent as text.
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
"""Message to the fork server, sent with the channels' file descriptors; the reply is the new process id."""


class State(Stated, frozen=True, array_like=True):
    """Serializable form of `StoreState`."""


class FileOptions(msgspec.Struct, frozen=True):
    """Options for opening an engine file: page cache in bytes, threads per statement.

    ``memory_bytes``: limit of the process's memory in addition to the page cache; 0 for no limit.
    """

    cache_bytes: int = 512 << 20
    threads: int = 2
    memory_bytes: int = 0


class Open(msgspec.Struct, frozen=True, tag=True):
    """Open a file."""

    path: str
    options: FileOptions


class Opened(msgspec.Struct, frozen=True):
    """Reply for an opened file: its state, its column set, and whether its schema is current."""

    state: State
    width: ColumnSet
    current: bool


class Change(msgspec.Struct, frozen=True, tag=True):
    """Apply a net change in one transaction, and record the resulting state unless it is None.

    Links are sent only for files with link tables.
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
        """Build the request for a net change, including its links if ``linked``."""
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
        """Net change that the request describes."""
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
    """Build a new file from a folder of rows and close it; it has at least the columns of ``width``."""

    path: str
    rows: str
    state: State
    options: FileOptions
    width: ColumnSet


class Make(msgspec.Struct, frozen=True, tag=True):
    """Build a new file from a few rows, and leave it open."""

    path: str
    rows: Change
    state: State
    options: FileOptions
    width: ColumnSet


class Query(msgspec.Struct, frozen=True, tag=True):
    """Run an internal statement and return all its rows; ``seconds`` is its time limit, 0 for none."""

    text: str
    parameters: dict[str, Any] = {}
    seconds: float = 0.0


class Read(msgspec.Struct, frozen=True, tag=True):
    """Run a caller's statement and return its rows; ``seconds`` is its time limit, 0 for none.

    With ``writes`` it may change the process's file, within a dry run.
    """

    statement: Statement
    seconds: float
    most: int | None
    writes: bool = False


class RowsPart(msgspec.Struct, frozen=True):
    """Piece of the rows, each a JSON array on its own line.

    ``count`` lines end in it; ``more`` says if pieces follow.
    """

    lines: bytes
    count: int
    more: bool


class Head(msgspec.Struct, frozen=True):
    """Reply to a statement: columns, types, total number of rows, and the first piece of rows."""

    columns: list[str]
    types: list[str]
    total: int
    first: RowsPart


class Next(msgspec.Struct, frozen=True, tag=True):
    """Send the next piece of rows."""


class Leave(msgspec.Struct, frozen=True, tag=True):
    """Discard the remaining rows of the statement."""


class Dump(msgspec.Struct, frozen=True, tag=True):
    """Write all rows to a folder from one snapshot, and return their state."""

    folder: str


class Try(msgspec.Struct, frozen=True, tag=True):
    """Begin a dry run by opening a snapshot of the file before a statement changes it."""


class Compare(msgspec.Struct, frozen=True, tag=True):
    """Compare the file with the snapshot of the dry run, within the scope of the statement.

    ``nodes`` and ``edges`` are the counts before the statement. ``folder`` is for temporary rows. A ``new`` file is
    never doubtful.
    """

    reach: WriteScope
    nodes: int
    edges: int
    folder: str
    new: bool


class Changed(msgspec.Struct, frozen=True):
    """Row after and before a change, by field; a value may be None if a statement left it out.

    Extras are ordinary fields, times are in microseconds, lists are JSON.
    """

    now: dict[str, Any]
    before: dict[str, Any] | None

    @property
    def edge_key(self) -> EdgeKey:
        """Key of the edge."""
        return (self.now["source"], self.now["target"], self.now["relation_type"])


class Difference(msgspec.Struct, frozen=True):
    """New and changed rows, and the keys of deleted rows.

    ``doubled``: keys shared by more than one edge.
    """

    nodes: list[Changed]
    edges: list[Changed]
    nodes_gone: list[str]
    edges_gone: list[EdgeKey]
    doubled: list[EdgeKey]


NO_DIFFERENCE = Difference(nodes=[], edges=[], nodes_gone=[], edges_gone=[], doubled=[])


class Doubtful(Exception):
    """Raised when a reused scratch copy does not hold the expected rows; the caller retries on a new copy."""


class Compared(msgspec.Struct, frozen=True):
    """Changes made by a statement. Not ``sound`` if the engine returned rows twice; the changes are still correct."""

    difference: Difference
    sound: bool


class Tried(msgspec.Struct, frozen=True, tag=True):
    """End a dry run; its changes stay in the file."""


class Interrupt(msgspec.Struct, frozen=True, tag=True):
    """Stop the statement on ``channel`` if it belongs to request number ``request``.

    Sent on the control channel, out of band: without the number it could hit the next request.
    """

    channel: int
    request: int


class Ping(msgspec.Struct, frozen=True, tag=True):
    """Check that the process is responsive."""


class Close(msgspec.Struct, frozen=True, tag=True):
    """Close the file without changes, so that it can be reopened."""


_FileRequest = Build | Make | Open | Change | Dump | Close
_StatementRequest = Query | Read | Next | Leave | Try | Compare | Tried | Interrupt | Ping
Request = _FileRequest | _StatementRequest


class Done(msgspec.Struct, frozen=True, tag=True):
    """Reply to a successful request."""

    value: msgspec.Raw


class Failed(msgspec.Struct, frozen=True, tag=True):
    """Reply to a failed request: error class name, message, and the invalid fields of an input."""

    kind: str
    message: str
    errors: list[FieldError] = []


encode = msgspec.msgpack.Encoder().encode


def receive_request(connection: Connection) -> Request:
    """Return the next request. Raises EOFError if the server has closed the channel."""
    return msgpack_decoder(Request).decode(connection.recv_bytes())


def receive_reply(connection: Connection) -> Done | Failed:
    """Return the reply to a request. Raises EOFError if the process has ended."""
    return msgpack_decoder(Done | Failed).decode(connection.recv_bytes())
