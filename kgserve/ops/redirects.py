"""Finding a node that was merged into another: who asks for it is given the other, and told so."""

from __future__ import annotations

import msgspec

from kgserve.history.history import History
from kgserve.model.merging import MAX_CHAIN, MERGED_INTO, is_withdrawn, survivor_of
from kgserve.ops.moments import ANY, Past
from kgserve.rows.redirect import survivor
from kgserve.rows.snapshot import Rows
from kgserve.store.store import Store

MOST_ENDS = 100


def found_as(rows: Rows, node_id: str, valid_at: str | None) -> str:
    """The node that is meant by an id: the one that it was merged into, but itself where everything is asked for."""
    return node_id if valid_at == ANY else survivor(rows, node_id)


def found_then(store: Store, past: Past, node_id: str, valid_at: str | None) -> str:
    """The same, as of a moment. Raises as `Past.of`."""
    if valid_at == ANY:
        return node_id
    follower, at = past.of(store)
    return follower.look(lambda history: survivor_at(history, node_id, at))


def survivor_at(history: History, node_id: str, at: int) -> str:
    """The node itself, or the one that it had come to by merges as of a commit."""
    steps: dict[str, str] = {}
    end: str | None = node_id
    while end is not None and end not in steps and len(steps) <= MAX_CHAIN:
        into = merged_at(history, end, at)
        if into is not None:
            steps[end] = into
        end = into
    return survivor_of(steps, node_id)


def merged_at(history: History, node_id: str, at: int) -> str | None:
    """What a node had been merged into as of a commit, if into any."""
    state = history.node_at(node_id, at)
    if state is None or not is_withdrawn(state.row.extras):
        return None
    edges = (each.row for each in history.outgoing(node_id, at, MOST_ENDS))
    return max(((row.sequence, row.target) for row in edges if row.relation_type == MERGED_INTO), default=(0, None))[1]


def note(asked: str, found: str) -> bytes:
    """What an answer in JSON says of it behind its last field."""
    return b"" if asked == found else b',"redirected_from":' + msgspec.json.encode(asked)


def noted(asked: str, found: str) -> str | msgspec.UnsetType:
    """The same for an answer that is a Struct."""
    return msgspec.UNSET if asked == found else asked
