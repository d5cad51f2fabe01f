"""Find and repair rows whose times lie in the future because a clock was ahead."""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import chain, islice

import msgspec
from typing_extensions import override

from kgserve.platform.timestamps import format_rfc3339_timestamp, parse_rfc3339_timestamp
from kgserve.projections.history.recovery import read_history_commit_times_after_time
from kgserve.storage.commit_clock import wall_time
from kgserve.storage.journal.replay import read_cross_store_links_as_of, read_node_accesses_as_of
from kgserve.storage.model.change_feed_events import build_node_before_image
from kgserve.storage.model.change_set import ChangeSet, MemoryAccessRecord, StoreState
from kgserve.storage.model.node_edge_fields import EdgeExtras, NodeExtras
from kgserve.storage.model.node_edge_rows import (
    CrossStoreLinkRow,
    EdgeRow,
    NodeRow,
    encode_edge_attributes,
    split_edge_times_from_attributes,
)
from kgserve.storage.model.store_rows_digest import update_digest_for_link_changes, update_digest_for_row_changes
from kgserve.storage.write_planner import MAX_CLOCK_DRIFT_MICROSECONDS, WriteReport, choose_commit_time
from kgserve.stores.open_store import OpenStore
from kgserve.stores.writer_thread import PlannedWrite

MAX_ROWS_PER_COMMIT = 10_000
_BATCH_ROW_BYTES = 512


class FutureTimestampCounts(msgspec.Struct, frozen=True):
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
            f"up to {format_rfc3339_timestamp(self.latest)}"
        )


class FutureTimestampFinder:
    """Finder of future times that a clock ahead has written into a store, as opposed to those that callers gave.

    A stamp is always the clock's. A bound of valid time is the clock's if a commit with a future stamp followed it
    within `MAX_CLOCK_DRIFT_MICROSECONDS`: superseding and retiring take the time just before they commit.
    """

    def __init__(self, store: OpenStore) -> None:
        """Collect the future stamps of an open store. Reads all rows, and the history if it can be read."""
        self._store = store
        self.limit = wall_time() + MAX_CLOCK_DRIFT_MICROSECONDS
        with store.reading() as rows:
            stamps = {time for row in rows.all_nodes() for time in (row.created_at, row.updated_at)}
            stamps = {time for time in stamps if time > self.limit}
            edges = chain(rows.all_edges(), (row.edge for row in self._all_links()))
            stamps.update(time for row in edges for time in _stamps_of_edge(row) if time > self.limit)
        self._commits = sorted(stamps.union(self._commit_times()))

    def nodes(self, rows: Iterable[NodeRow]) -> Iterator[NodeRow]:
        """Yield the nodes that have such a time."""
        return (row for row in rows if self.latest_of_node(row))

    def edges(self, rows: Iterable[EdgeRow]) -> Iterator[EdgeRow]:
        """Yield the edges that have such a time."""
        return (row for row in rows if self.latest_of_edge(row))

    def links(self) -> Iterator[CrossStoreLinkRow]:
        """Yield the edges into other stores that have such a time."""
        return (row for row in self._all_links() if self.latest_of_edge(row.edge))

    def accesses(self) -> Iterator[MemoryAccessRecord]:
        """Yield the access counters that have such a time."""
        self._store.accesses.flush_and_wait()
        for some in read_node_accesses_as_of(self._store.layout, self._store.journal, self._store.state.sequence):
            yield from (each for each in some if each.last > self.limit)

    def latest_of_node(self, row: NodeRow) -> int:
        """Return the latest such time of a node in microseconds, or 0."""
        extras = row.extras
        stamps = (row.created_at, row.updated_at, extras and extras.confidence_at)
        bounds = () if extras is None else (extras.valid_from, extras.valid_to, extras.former_from, extras.former_to)
        return self._latest(stamps, bounds)

    def latest_of_edge(self, row: EdgeRow) -> int:
        """Return the latest such time of an edge in microseconds, or 0."""
        return self._latest(
            _stamps_of_edge(row), () if row.extras is None else (row.extras.valid_from, row.extras.valid_to)
        )

    def wrote(self, bound: int | None) -> bool:
        """Return whether the clock that was ahead wrote a bound of valid time."""
        if bound is None or bound <= self.limit:
            return False
        place = bisect_left(self._commits, bound)
        return place < len(self._commits) and self._commits[place] - bound <= MAX_CLOCK_DRIFT_MICROSECONDS

    def _latest(self, stamps: Iterable[int | None], bounds: Iterable[int | None]) -> int:
        wrong = [time for time in stamps if time is not None and time > self.limit]
        return max((*wrong, *(time for time in bounds if time is not None and self.wrote(time))), default=0)

    def _all_links(self) -> Iterator[CrossStoreLinkRow]:
        store = self._store
        return chain.from_iterable(read_cross_store_links_as_of(store.layout, store.journal, store.state.sequence))

    def _commit_times(self) -> list[int]:
        path = self._store.layout.history
        try:
            return read_history_commit_times_after_time(path, self.limit) if path.is_file() else []
        except sqlite3.Error:
            return []


class _FutureRows(msgspec.Struct):
    """Rows and access counters to repair in one commit."""

    nodes: list[NodeRow]
    edges: list[EdgeRow]
    links: list[CrossStoreLinkRow]
    accesses: list[MemoryAccessRecord]

    @property
    def count(self) -> int:
        return len(self.nodes) + len(self.edges) + len(self.links) + len(self.accesses)


class FutureTimestampRepairCommit(PlannedWrite):
    """Commit that sets future times of rows and access counters to the current time."""

    def __init__(self, store: OpenStore, rows: _FutureRows, times: FutureTimestampFinder) -> None:
        """Take the rows to repair, and which of their times are in the future."""
        self._store = store
        self._rows = rows
        self._times = times

    @property
    @override
    def cost(self) -> int:
        return _BATCH_ROW_BYTES * self._rows.count

    @override
    def change(self, state: StoreState, now: int) -> tuple[ChangeSet, WriteReport]:
        sequence, time = state.sequence + 1, choose_commit_time(now, state.time)
        old, times = self._rows, self._times
        nodes = [_restamped_node(row, sequence, time, times) for row in old.nodes]
        edges = [_restamped_edge(row, sequence, time, times) for row in old.edges]
        links = [CrossStoreLinkRow(row.store, _restamped_edge(row.edge, sequence, time, times)) for row in old.links]
        digest = update_digest_for_row_changes(
            update_digest_for_row_changes(state.digest, nodes, old.nodes), edges, old.edges
        )
        linked = None
        if links:
            with self._store.reading_links() as (_, stored):
                linked = stored and update_digest_for_link_changes(stored.state, links, old.links)
        change = ChangeSet(
            sequence=sequence,
            time=time,
            nodes_updated=nodes,
            edges_updated=edges,
            links_updated=links,
            accessed=[msgspec.structs.replace(each, last=time) for each in old.accesses],
            former=[
                each
                for pair in zip(old.nodes, nodes, strict=True)
                if (each := build_node_before_image(*pair)) is not None
            ],
            digest=digest.to_bytes(16),
            nodes=state.nodes,
            edges=state.edges,
            links=linked,
        )
        report = WriteReport(nodes_updated=len(nodes), edges_updated=len(edges) + len(links), sequence=sequence)
        return change, report

    @override
    def show(self, change: ChangeSet) -> None:
        self._store.rows.apply([change])


def count_future_timestamps(store: OpenStore) -> FutureTimestampCounts:
    """Count the rows and access counters of an open store with future times. Reads all of them."""
    times = FutureTimestampFinder(store)
    with store.reading() as rows:
        nodes = [times.latest_of_node(row) for row in times.nodes(rows.all_nodes())]
        edges = [times.latest_of_edge(row) for row in times.edges(rows.all_edges())]
    edges += [times.latest_of_edge(row.edge) for row in times.links()]
    accesses = [each.last for each in times.accesses()]
    return FutureTimestampCounts(len(nodes), len(edges), len(accesses), max((*nodes, *edges, *accesses), default=0))


def repair_future_timestamps(store: OpenStore) -> int:
    """Set future times of rows and access counters to the current time; return the number of repaired ones.

    The former states stay in the history. No other writes may run meanwhile.
    """
    times = FutureTimestampFinder(store)
    with store.reading() as rows:
        left = times.nodes(rows.all_nodes()), times.edges(rows.all_edges()), times.links(), times.accesses()
        done = 0
        while some := _next_rows(*left):
            repair = FutureTimestampRepairCommit(store, some, times)
            store.submit_prepared(lambda repair=repair: repair).result()
            done += some.count
    store.clock.mark_repaired()
    return done


def _next_rows(
    nodes: Iterator[NodeRow],
    edges: Iterator[EdgeRow],
    links: Iterator[CrossStoreLinkRow],
    accesses: Iterator[MemoryAccessRecord],
) -> _FutureRows | None:
    """Return the rows of the next commit; None when none are left."""
    some = _FutureRows(
        list(islice(nodes, MAX_ROWS_PER_COMMIT)),
        list(islice(edges, MAX_ROWS_PER_COMMIT)),
        list(islice(links, MAX_ROWS_PER_COMMIT)),
        list(islice(accesses, MAX_ROWS_PER_COMMIT)),
    )
    return some if some.count else None


def _stamps_of_edge(row: EdgeRow) -> tuple[int, int]:
    stamps = split_edge_times_from_attributes(row.attributes)
    return parse_rfc3339_timestamp(stamps.created_at), parse_rfc3339_timestamp(stamps.updated_at)


def _restamped_node(row: NodeRow, sequence: int, now: int, times: FutureTimestampFinder) -> NodeRow:
    return msgspec.structs.replace(
        row,
        version=row.version + 1,
        sequence=sequence,
        created_at=now if row.created_at > times.limit else row.created_at,
        updated_at=now,
        extras=None if row.extras is None else _restamped_node_extras(row.extras, now, times),
    )


def _restamped_node_extras(extras: NodeExtras, now: int, times: FutureTimestampFinder) -> NodeExtras:
    stated = extras.confidence_at
    return msgspec.structs.replace(
        extras,
        confidence_at=now if stated is not None and stated > times.limit else stated,
        valid_from=now if times.wrote(extras.valid_from) else extras.valid_from,
        valid_to=now if times.wrote(extras.valid_to) else extras.valid_to,
        former_from=now if times.wrote(extras.former_from) else extras.former_from,
        former_to=now if times.wrote(extras.former_to) else extras.former_to,
    )


def _restamped_edge(row: EdgeRow, sequence: int, now: int, times: FutureTimestampFinder) -> EdgeRow:
    stamps, text = split_edge_times_from_attributes(row.attributes), format_rfc3339_timestamp(now)
    created = text if parse_rfc3339_timestamp(stamps.created_at) > times.limit else stamps.created_at
    attributes = encode_edge_attributes(created, text, stamps.own)
    extras = None if row.extras is None else _restamped_edge_extras(row.extras, now, times)
    return msgspec.structs.replace(
        row, attributes=attributes, version=row.version + 1, sequence=sequence, extras=extras
    )


def _restamped_edge_extras(extras: EdgeExtras, now: int, times: FutureTimestampFinder) -> EdgeExtras:
    return msgspec.structs.replace(
        extras,
        valid_from=now if times.wrote(extras.valid_from) else extras.valid_from,
        valid_to=now if times.wrote(extras.valid_to) else extras.valid_to,
    )
