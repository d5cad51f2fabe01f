"""Messages between the server and an engine process: a request and its reply, in strict alternation.

Both are length-prefixed MessagePack on a local socket. Digests have 128 bits and are sent as text.
"""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import msgspec

from kgserve.cypher.guard import GuardedCypherStatement
from kgserve.cypher.write_analysis import StatementWriteBounds
from kgserve.errors import FieldError
from kgserve.platform.codecs import msgpack_decoder
from kgserve.storage.model.change_set import NetChange, StoreState
from kgserve.storage.model.node_edge_fields import NodeEdgeColumnSet
from kgserve.storage.model.node_edge_rows import CrossStoreLinkKey, CrossStoreLinkRow, EdgeKey, EdgeRow, NodeRow
from kgserve.storage.model.store_rows_digest import SerializedStoreState

FORK_REQUEST = b"fork"
"""Message to the fork server, sent with the channels' file descriptors; the reply is the new process id."""


class StoreStateMessage(SerializedStoreState, frozen=True, array_like=True):
    """State of a store as exchanged with its engine process: last commit, digest and row counts."""


class EngineFileOptions(msgspec.Struct, frozen=True):
    """Options for opening an engine file: page cache in bytes, threads per statement.

    ``memory_bytes``: limit of the process's memory in addition to the page cache; 0 for no limit.
    """

    cache_bytes: int = 512 << 20
    threads: int = 2
    memory_bytes: int = 0


class OpenEngineFileRequest(msgspec.Struct, frozen=True, tag=True):
    """Open a file."""

    path: str
    options: EngineFileOptions


class OpenFileReply(msgspec.Struct, frozen=True):
    """Reply for an opened file: its state, its column set, and whether its schema is current."""

    state: StoreStateMessage
    width: NodeEdgeColumnSet
    current: bool


class ApplyNetChangeRequest(msgspec.Struct, frozen=True, tag=True):
    """Apply a net change in one transaction, and record the resulting state unless it is None.

    Links are sent only for files with link tables.
    """

    state: StoreStateMessage | None
    nodes_created: list[NodeRow]
    nodes_updated: list[NodeRow]
    nodes_deleted: list[str]
    remade: list[str]
    edges_created: list[EdgeRow]
    edges_updated: list[EdgeRow]
    edges_deleted: list[EdgeKey]
    links_created: list[CrossStoreLinkRow] = []
    links_updated: list[CrossStoreLinkRow] = []
    links_deleted: list[CrossStoreLinkKey] = []

    @classmethod
    def of(cls, net: NetChange, state: StoreState | None, *, linked: bool) -> ApplyNetChangeRequest:
        """Build the request for a net change, including its links if ``linked``."""
        links = net if linked else NetChange()
        return cls(
            state and StoreStateMessage.of(state),
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


class BuildEngineFileRequest(msgspec.Struct, frozen=True, tag=True):
    """Build a new file from a folder of rows and close it; it has at least the columns of ``width``."""

    path: str
    rows: str
    state: StoreStateMessage
    options: EngineFileOptions
    width: NodeEdgeColumnSet


class BuildSmallEngineFileRequest(msgspec.Struct, frozen=True, tag=True):
    """Build a new file from a few rows, and leave it open."""

    path: str
    rows: ApplyNetChangeRequest
    state: StoreStateMessage
    options: EngineFileOptions
    width: NodeEdgeColumnSet


class EngineInternalQueryRequest(msgspec.Struct, frozen=True, tag=True):
    """Run an internal statement and return all its rows; ``seconds`` is its time limit, 0 for none."""

    text: str
    parameters: dict[str, Any] = {}
    seconds: float = 0.0


class RunStatementRequest(msgspec.Struct, frozen=True, tag=True):
    """Run a caller's statement and return its rows; ``seconds`` is its time limit, 0 for none.

    With ``writes`` it may change the process's file, within a dry run.
    """

    statement: GuardedCypherStatement
    seconds: float
    most: int | None
    writes: bool = False


class ResultChunk(msgspec.Struct, frozen=True):
    """Piece of the rows, each a JSON array on its own line.

    ``count`` lines end in it; ``more`` says if pieces follow.
    """

    lines: bytes
    count: int
    more: bool


class EngineStatementReply(msgspec.Struct, frozen=True):
    """Reply of the engine process to a statement: columns, types, number of rows, and the first piece of rows."""

    columns: list[str]
    types: list[str]
    total: int
    first: ResultChunk


class NextRowChunkRequest(msgspec.Struct, frozen=True, tag=True):
    """Send the next piece of rows."""


class CloseResultRequest(msgspec.Struct, frozen=True, tag=True):
    """Discard the remaining rows of the statement."""


class DumpRowsRequest(msgspec.Struct, frozen=True, tag=True):
    """Write all rows to a folder from one snapshot, and return their state."""

    folder: str


class BeginDryRun(msgspec.Struct, frozen=True, tag=True):
    """Begin a dry run by opening a snapshot of the file before a statement changes it."""


class CompareDryRunRowsRequest(msgspec.Struct, frozen=True, tag=True):
    """Compare the file with the snapshot of the dry run, within the scope of the statement.

    ``nodes`` and ``edges`` are the counts before the statement. ``folder`` is for temporary rows. A ``new`` file is
    never doubtful.
    """

    reach: StatementWriteBounds
    nodes: int
    edges: int
    folder: str
    new: bool


class ChangedRow(msgspec.Struct, frozen=True):
    """Row after and before a change, by field; a value may be None if a statement left it out.

    Extras are ordinary fields, times are in microseconds, lists are JSON.
    """

    now: dict[str, Any]
    before: dict[str, Any] | None

    @property
    def edge_key(self) -> EdgeKey:
        """Key of the edge."""
        return (self.now["source"], self.now["target"], self.now["relation_type"])


class StatementRowChanges(msgspec.Struct, frozen=True):
    """New and changed rows, and the keys of deleted rows.

    ``doubled``: keys shared by more than one edge.
    """

    nodes: list[ChangedRow]
    edges: list[ChangedRow]
    nodes_gone: list[str]
    edges_gone: list[EdgeKey]
    doubled: list[EdgeKey]


NO_ROW_CHANGES = StatementRowChanges(nodes=[], edges=[], nodes_gone=[], edges_gone=[], doubled=[])


class ScratchCopyUnreliable(Exception):
    """Raised when a reused scratch copy does not hold the expected rows; the caller retries on a new copy."""


class DryRunChangesReply(msgspec.Struct, frozen=True):
    """Row changes made by a dry-run statement; not ``sound`` if the engine returned rows twice."""

    difference: StatementRowChanges
    sound: bool


class EndDryRunRequest(msgspec.Struct, frozen=True, tag=True):
    """End a dry run; its changes stay in the file."""


class InterruptRequest(msgspec.Struct, frozen=True, tag=True):
    """Stop the statement on ``channel`` if it belongs to request number ``request``.

    Sent on the control channel, out of band: without the number it could hit the next request.
    """

    channel: int
    request: int


class PingEngineProcessRequest(msgspec.Struct, frozen=True, tag=True):
    """Check that the process is responsive."""


class CloseEngineFileRequest(msgspec.Struct, frozen=True, tag=True):
    """Close the file without changes, so that it can be reopened."""


_FileRequest = (
    BuildEngineFileRequest
    | BuildSmallEngineFileRequest
    | OpenEngineFileRequest
    | ApplyNetChangeRequest
    | DumpRowsRequest
    | CloseEngineFileRequest
)
_StatementRequest = (
    EngineInternalQueryRequest
    | RunStatementRequest
    | NextRowChunkRequest
    | CloseResultRequest
    | BeginDryRun
    | CompareDryRunRowsRequest
    | EndDryRunRequest
    | InterruptRequest
    | PingEngineProcessRequest
)
EngineRequest = _FileRequest | _StatementRequest


class EngineSuccessReply(msgspec.Struct, frozen=True, tag=True):
    """Reply to a successful request."""

    value: msgspec.Raw


class EngineErrorReply(msgspec.Struct, frozen=True, tag=True):
    """Reply to a failed request: error class name, message, and the invalid fields of an input."""

    kind: str
    message: str
    errors: list[FieldError] = []


encode_message = msgspec.msgpack.Encoder().encode


def receive_engine_request(connection: Connection) -> EngineRequest:
    """Return the next request. Raises EOFError if the server has closed the channel."""
    return msgpack_decoder(EngineRequest).decode(connection.recv_bytes())


def receive_engine_process_reply(connection: Connection) -> EngineSuccessReply | EngineErrorReply:
    """Return the reply to a request. Raises EOFError if the process has ended."""
    return msgpack_decoder(EngineSuccessReply | EngineErrorReply).decode(connection.recv_bytes())
