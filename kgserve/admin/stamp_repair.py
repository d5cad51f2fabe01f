"""Find and repair rows whose times lie in the future because a clock was ahead."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import msgspec
from typing_extensions import override

from kgserve.platform.timestamps import format_time, parse_time
from kgserve.storage.commit_clock import wall_time
from kgserve.storage.journal.replay import read_all_accesses
from kgserve.storage.model.change import AccessRecord, ChangeSet, StoreState
from kgserve.storage.model.digest import shift_digest
from kgserve.storage.model.events import before_image_of
from kgserve.storage.model.fields import NodeExtras
from kgserve.storage.model.rows import EdgeRow, NodeRow, encode_edge_attributes, split_edge_attributes
from kgserve.storage.plan import MAX_CLOCK_DRIFT_MICROSECONDS, WriteReport, choose_commit_time
from kgserve.stores.open_store import OpenStore
from kgserve.stores.writer import PlannedWrite

MAX_ROWS_PER_COMMIT = 10_000
_BATCH_ROW_BYTES = 512


class FutureStamps(msgspec.Struct, frozen=True):
    """Numbers of rows and access counters with future times, and the latest of these times in microseconds."""

    nodes: int
    edges: int
    accesses: int
    latest: int

    @property
    def count(self) -> int:
        """Number of rows and access counters."""
        return self.nodes + self.edges + self.accesses

    @override
    def __str__(self) -> str:
        """Describe the result in one sentence."""
        return (
            f"{self.nodes} nodes, {self.edges} edges and {self.accesses} access counters are stamped in the future, "
            f"up to {format_time(self.latest)}"
        )


class StampRepair(PlannedWrite):
    """Commit that sets future times of rows and access counters to the current time."""

    def __init__(
        self, store: OpenStore, nodes: list[NodeRow], edges: list[EdgeRow], accesses: list[AccessRecord], limit: int
    ) -> None:
        """Take the rows to repair; times after ``limit``, in microseconds, are in the future."""
        self._store = store
        self._nodes, self._edges, self._accesses = nodes, edges, accesses
        self._limit = limit

    @property
    @override
    def cost(self) -> int:
        return _BATCH_ROW_BYTES * (len(self._nodes) + len(self._edges) + len(self._accesses))

    @override
    def change(self, state: StoreState, now: int) -> tuple[ChangeSet, WriteReport]:
        sequence, time = state.sequence + 1, choose_commit_time(now, state.time)
        nodes = [_restamped_node(row, sequence, time, self._limit) for row in self._nodes]
        edges = [_restamped_edge(row, sequence, time, self._limit) for row in self._edges]
        digest = shift_digest(shift_digest(state.digest, nodes, self._nodes), edges, self._edges)
        change = ChangeSet(
            sequence=sequence,
            time=time,
            nodes_updated=nodes,
            edges_updated=edges,
            accessed=[msgspec.structs.replace(each, last=time) for each in self._accesses],
            former=[
                each for pair in zip(self._nodes, nodes, strict=True) if (each := before_image_of(*pair)) is not None
            ],
            digest=digest.to_bytes(16),
            nodes=state.nodes,
            edges=state.edges,
        )
        return change, WriteReport(nodes_updated=len(nodes), edges_updated=len(edges), sequence=sequence)

    @override
    def show(self, change: ChangeSet) -> None:
        self._store.rows.apply([change])


def find_future_stamps(store: OpenStore) -> FutureStamps:
    """Count the rows and access counters of an open store with future times. Reads all of them."""
    limit = wall_time() + MAX_CLOCK_DRIFT_MICROSECONDS
    with store.reading() as rows:
        nodes = [_latest_of_node(row) for row in rows.all_nodes() if _latest_of_node(row) > limit]
        edges = [_latest_of_edge(row) for row in rows.all_edges() if _latest_of_edge(row) > limit]
    accesses = [each.last for each in _future_accesses(store, limit)]
    return FutureStamps(len(nodes), len(edges), len(accesses), max((*nodes, *edges, *accesses), default=0))


def repair_stamps(store: OpenStore) -> int:
    """Set future times of rows and access counters to the current time; return the number of repaired ones.

    The former states stay in the history. No other writes may run meanwhile.
    """
    limit = wall_time() + MAX_CLOCK_DRIFT_MICROSECONDS
    with store.reading() as rows:
        nodes = (row for row in rows.all_nodes() if _latest_of_node(row) > limit)
        edges = (row for row in rows.all_edges() if _latest_of_edge(row) > limit)
        accesses = _future_accesses(store, limit)
        done = 0
        while some := _next_rows(nodes, edges, accesses):
            repair = StampRepair(store, *some, limit)
            store.submit_prepared(lambda repair=repair: repair).result()
            done += sum(map(len, some))
    store.clock.mark_repaired()
    return done


def _next_rows(
    nodes: Iterator[NodeRow], edges: Iterator[EdgeRow], accesses: Iterator[AccessRecord]
) -> tuple[list[NodeRow], list[EdgeRow], list[AccessRecord]] | None:
    """Return the rows of the next commit; None when none are left."""
    some = (
        list(islice(nodes, MAX_ROWS_PER_COMMIT)),
        list(islice(edges, MAX_ROWS_PER_COMMIT)),
        list(islice(accesses, MAX_ROWS_PER_COMMIT)),
    )
    return some if any(some) else None


def _future_accesses(store: OpenStore, limit: int) -> Iterator[AccessRecord]:
    store.accesses.flush_and_wait()
    for some in read_all_accesses(store.layout, store.journal, store.state.sequence):
        yield from (each for each in some if each.last > limit)


def _latest_of_node(row: NodeRow) -> int:
    stated = 0 if row.extras is None else row.extras.confidence_at or 0
    return max(row.created_at, row.updated_at, stated)


def _latest_of_edge(row: EdgeRow) -> int:
    stamps = split_edge_attributes(row.attributes)
    return max(parse_time(stamps.created_at), parse_time(stamps.updated_at))


def _restamped_node(row: NodeRow, sequence: int, now: int, limit: int) -> NodeRow:
    return msgspec.structs.replace(
        row,
        version=row.version + 1,
        sequence=sequence,
        created_at=now if row.created_at > limit else row.created_at,
        updated_at=now,
        extras=None if row.extras is None else _restamped_extras(row.extras, row, now, limit),
    )


def _restamped_extras(extras: NodeExtras, row: NodeRow, now: int, limit: int) -> NodeExtras:
    """Return extras without future confidence times; validity that began at the node's creation moves with it."""
    stated, begins = extras.confidence_at, extras.valid_from
    is_made_then = begins is not None and begins > limit and begins in (row.created_at, row.updated_at)
    return msgspec.structs.replace(
        extras,
        confidence_at=now if stated is not None and stated > limit else stated,
        valid_from=now if is_made_then else begins,
    )


def _restamped_edge(row: EdgeRow, sequence: int, now: int, limit: int) -> EdgeRow:
    stamps, text = split_edge_attributes(row.attributes), format_time(now)
    created = text if parse_time(stamps.created_at) > limit else stamps.created_at
    attributes = encode_edge_attributes(created, text, stamps.own)
    return msgspec.structs.replace(row, attributes=attributes, version=row.version + 1, sequence=sequence)
