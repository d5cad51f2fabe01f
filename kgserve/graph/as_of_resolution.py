"""Moments named in requests, access to the history of a store, and merge redirects as of a commit."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import msgspec

from kgserve.errors import Conflict, InvalidInput, Unavailable
from kgserve.platform.timestamps import parse_rfc3339_timestamp
from kgserve.projections.history.row_state_history import HistoryFile
from kgserve.projections.history_follower import HistoryProjection, HistoryWorker
from kgserve.projections.read_your_writes import wait_for_projections_or_raise
from kgserve.storage.model.merge_redirects import (
    MAX_REDIRECTS,
    MERGED_INTO_RELATION,
    follow_merge_redirect_chain,
    is_node_never_valid,
)
from kgserve.storage.model.node_edge_rows import NodeRow
from kgserve.stores.open_store import OpenStore

AS_OF_TIMEOUT_SECONDS = 10.0
MAX_AS_OF_DIGITS = 18
MAX_EDGES_PER_DIRECTION = 1000
"""Edges shown with a node, in each direction."""
NO_EDGE_LIMIT = 1 << 62
MAX_REDIRECT_EDGES_SCANNED = 100
"""Edges of a merged node scanned for its redirect."""
VALID_AT_ANY = "any"
VALID_AT_NOW = "now"


def get_caught_up_history(historian: HistoryWorker | None, store: OpenStore) -> HistoryProjection:
    """Return the history of an open store, caught up with its last commit.

    Raises Conflict when no history is kept, and Unavailable when it does not catch up within ten seconds.
    """
    follower = require_history(historian, store)
    wait_until_history_indexed(follower, store.state.sequence)
    return follower


def require_history(historian: HistoryWorker | None, store: OpenStore) -> HistoryProjection:
    """Return the history of an open store. Raises Conflict when none is kept."""
    if historian is None:
        raise Conflict("histories are turned off on this server; only the current state can be read")
    return historian.of(store)


def wait_until_history_indexed(follower: HistoryProjection, sequence: int) -> None:
    """Wait until a history has indexed a commit. Raises Unavailable if it has not after ten seconds."""
    if not wait_for_projections_or_raise([follower], sequence, AS_OF_TIMEOUT_SECONDS, ("history", follower.store.name)):
        seen = max(follower.sequence, 0)
        raise Unavailable(f"the history has not indexed sequence {sequence} yet, only {seen}", retry_after=2)


def parse_valid_at(text: str | None) -> int | None:
    """Return a valid time in microseconds; None for any time.

    Raises InvalidInput for text that is not an RFC 3339 time, ``now`` or ``any``.
    """
    if text is None or text == VALID_AT_ANY:
        return None
    if text == VALID_AT_NOW:
        return _now()
    try:
        return parse_rfc3339_timestamp(text)
    except (ValueError, OverflowError):
        message = "must be an RFC 3339 time such as 2025-07-15T12:00:00Z, `now` or `any`"
        raise InvalidInput.at("valid_at", message) from None


def format_not_found_moment_suffix(as_of: int | str | None, valid_at: str | None) -> str:
    """Return the requested moment as the end of a "not found" message; empty for now."""
    text = "" if as_of is None else f" as of {as_of}"
    return text + (f", true at {valid_at}" if valid_at and valid_at != VALID_AT_ANY else "")


def _now() -> int:
    return time.time_ns() // 1000


def list_nodes_as_of_commit(history: HistoryFile, ids: Iterable[str], at: int) -> Iterator[NodeRow]:
    """Yield the nodes of some ids that existed at a commit."""
    return (state.row for node_id in ids if (state := history.node_at(node_id, at)) is not None)


def resolve_merge_redirect_at_commit(history: HistoryFile, node_id: str, at: int) -> str:
    """Return a node's id after following merge redirects as of a commit."""
    steps: dict[str, str] = {}
    end: str | None = node_id
    while end is not None and end not in steps and len(steps) <= MAX_REDIRECTS:
        into = find_merge_redirect_at_commit(history, end, at)
        if into is not None:
            steps[end] = into
        end = into
    return follow_merge_redirect_chain(steps, node_id)


def find_merge_redirect_at_commit(history: HistoryFile, node_id: str, at: int) -> str | None:
    """Return the node that one was merged into as of a commit; None if it was not merged."""
    state = history.node_at(node_id, at)
    if state is None or not is_node_never_valid(state.row.extras):
        return None
    edges = (each.row for each in history.outgoing(node_id, at, MAX_REDIRECT_EDGES_SCANNED))
    return max(
        ((row.sequence, row.target) for row in edges if row.relation_type == MERGED_INTO_RELATION), default=(0, None)
    )[1]


def encode_redirected_from_field(asked: str, found: str) -> bytes:
    """Encode the redirect from the requested id, to follow the last field of a JSON object."""
    return b"" if asked == found else b',"redirected_from":' + msgspec.json.encode(asked)


def to_redirected_from_value(asked: str, found: str) -> str | msgspec.UnsetType:
    """Return the redirect from the requested id, as the value of a Struct field."""
    return msgspec.UNSET if asked == found else asked
