"""Delivery of store contents to sinks: each sink follows the journal of every store from its own position.

Deliveries carry the same net changes as the indexes. The position is saved after a batch is acknowledged, so a crash
repeats batches but skips none. The journal is not retained for sinks: one that falls behind its start receives all
current rows again.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from typing import Any

import msgspec
import structlog
import xxhash
from typing_extensions import override

from kgserve.errors import KgserveError, NoStore
from kgserve.platform.codecs import decode_json
from kgserve.platform.durable_files import write_file_atomically
from kgserve.projections.background_projection import BackgroundProjection
from kgserve.projections.base import ProjectionEraseRequest, StoreFollowedByProjections, StorePoolFollowedByProjections
from kgserve.projections.connectors.sinks import ConfiguredSink
from kgserve.projections.text_index_base import collapse_change_sets_to_final_rows
from kgserve.projections.update_scheduler import FOLLOWER_CLOSE_TIMEOUT_SECONDS, ProjectionThread
from kgserve.projections.workers import StoreProjectionWorker
from kgserve.storage.model.change_set import ChangeSet
from kgserve.storage.model.node_edge_rows import EMPTY_ATTRIBUTES_JSON, NodeRow
from kgserve.storage.model.projection_statuses import SyncerStatus
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.storage.store_folder_layout import StoreLayout, read_closed_store_state
from kgserve.syncing import ContentChange, SyncBatch

log = structlog.get_logger()

SINK_BATCH_ROWS = 1_000
SINK_BATCH_BYTES = 1 << 20
"""Maximum bytes of contents and attributes in one batch; a single larger node is still sent."""
SINK_SLOT_SECONDS = 3.0
"""Seconds to serve a store opened for delivery before the next one; a store still behind gets another slot."""
SINK_RETRY_DELAY_SECONDS = 30.0
_PLACES_LOST = 1_000
_FAILURES_HELD = 8

_Pages = Iterator[tuple[tuple[ContentChange, ...], bool]]


class SinkPosition(msgspec.Struct, frozen=True):
    """Last commit delivered to the ``target``. Files of older versions have no ``checksum``."""

    sequence: int
    target: str = ""
    checksum: str = ""

    @classmethod
    def of(cls, sequence: int, target: str) -> SinkPosition:
        """Return a position with its checksum."""
        return cls(sequence, target, xxhash.xxh3_64_hexdigest(f"{sequence}\0{target}".encode()))

    @property
    def is_whole(self) -> bool:
        """False if the checksum does not match. An altered position would skip commits silently."""
        return not self.checksum or self == self.of(self.sequence, self.target)


def read_sink_position(layout: StoreLayout, plug: ConfiguredSink) -> SinkPosition | None:
    """Return a sink's saved position in a store; None if it needs all rows."""
    try:
        found = decode_json(layout.syncer_progress_file(plug.name).read_bytes(), SinkPosition)
    except (OSError, ValueError):
        return None
    return found if found.is_whole and found.target == plug.target else None


class SinkDelivery(BackgroundProjection):
    """Delivery of one store to one sink."""

    rows_at_once = SINK_BATCH_ROWS

    def __init__(self, store: StoreFollowedByProjections, plug: ConfiguredSink, most: int) -> None:
        """Start with batches of at most ``most`` changes."""
        super().__init__(store)
        self.name = plug.name
        self._plug = plug
        self._most = most
        self._saved = 0
        self._sent = self._failures = self._failed_in_a_row = 0
        self._full_scan: Generator[SyncBatch] | None = None
        self._pending: SyncBatch | None = None
        # A batch waiting to be sent may contain data that was just erased.
        self._stale = threading.Event()
        store.after_erasing.append(self._stale.set)

    @property
    def lag(self) -> int:
        """Number of commits not yet delivered."""
        return max(self.store.state.sequence - self.reached, 0)

    def status(self) -> SyncerStatus:
        """Return the delivery status."""
        return SyncerStatus(
            name=self.name,
            sequence=self.reached,
            lag=self.lag,
            sent=self._sent,
            failures=self._failures,
            error=self.error,
        )

    @property
    def sent(self) -> int:
        """Number of changes acknowledged since the store was opened."""
        return self._sent

    @override
    def fail(self, error: str) -> None:
        self._failures += 1
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= _FAILURES_HELD:
            # Free the rows kept in memory for an unreachable sink; they are read again when it is back.
            self._stop_full_scan()
        super().fail(error)

    @override
    def close(self) -> None:
        self._stop_full_scan()
        if self.reached > self._saved:
            self._save(self.reached)

    @override
    def _erase(self, erasure: ProjectionEraseRequest) -> None:
        """Do nothing: no files with contents exist."""

    @override
    def _open(self) -> int:
        place = read_sink_position(self.store.layout, self._plug)
        if place is None:
            self.rebuild_wanted = True
            return 0
        self._saved = place.sequence
        return place.sequence

    @override
    def _is_behind(self) -> bool:
        return self.rebuild_wanted or super()._is_behind()

    @override
    def _rebuild(self) -> None:
        """Send one batch of all current rows; the next step sends the next."""
        super()._rebuild()
        self.rebuild_wanted = self._full_scan is not None

    @override
    def _apply_all(self, rows: RowsSnapshot) -> int:
        if self._stale.is_set():
            self._stale.clear()
            self._stop_full_scan()
        if self._full_scan is None:
            self._full_scan = self._all_batches()
        self._pending = batch = self._pending or next(self._full_scan)
        self._send(batch)
        self._pending = None
        if batch.more:
            return self.sequence
        self._stop_full_scan()
        self._save(batch.sequence)
        return batch.sequence

    def _all_batches(self) -> Generator[SyncBatch]:
        with self.store.reading() as rows:
            yield from self._batches(0, rows.at, _all_contents(rows), anew=True)

    def _stop_full_scan(self) -> None:
        filling, self._full_scan, self._pending = self._full_scan, None, None
        if filling is not None:
            filling.close()

    @override
    def _apply(self, changes: Iterable[ChangeSet], sequence: int) -> None:
        was_sent = False
        for batch in self._batches(self.sequence, sequence, _changed_contents(changes)):
            if batch.changes:
                self._send(batch)
                was_sent = True
        if was_sent or sequence - self._saved >= _PLACES_LOST:
            self._save(sequence)

    def _batches(
        self, after: int, sequence: int, changes: Iterable[ContentChange], *, anew: bool = False
    ) -> Generator[SyncBatch]:
        for part, (some, more) in enumerate(_pages(changes, self._most)):
            yield SyncBatch(
                store=self.store.name,
                after=after,
                sequence=sequence,
                part=part,
                more=more,
                anew=anew,
                changes=some,
            )

    def _send(self, batch: SyncBatch) -> None:
        self._continue()
        try:
            self._plug.syncer.sync(batch, self._stopping.is_set)
        except Exception:
            self._continue()
            raise
        # The store may have been closed or replaced by another one of the same name.
        self._continue()
        self._sent += len(batch.changes)
        self._failed_in_a_row = 0
        self.error = None

    def _save(self, sequence: int) -> None:
        write_file_atomically(
            self.store.layout.syncer_progress_file(self.name),
            msgspec.json.encode(SinkPosition.of(sequence, self._plug.target)),
        )
        self._saved = sequence


def _changed_contents(changes: Iterable[ChangeSet]) -> Iterator[ContentChange]:
    rows, _ = collapse_change_sets_to_final_rows(changes)
    return (_content(node_id, row) for node_id, row in rows.items())


def _all_contents(rows: RowsSnapshot) -> Iterator[ContentChange]:
    return (_content(row.id, row) for row in rows.all_nodes() if _has_content(row))


def _has_content(row: NodeRow) -> bool:
    return bool(row.content) and not (row.extras is not None and row.extras.ended)


def _content(node_id: str, row: NodeRow | None) -> ContentChange:
    if row is None or not _has_content(row):
        return ContentChange(id=node_id, sequence=0 if row is None else row.sequence)
    attributes = {} if row.attributes == EMPTY_ATTRIBUTES_JSON else decode_json(row.attributes, dict[str, Any])
    extras = row.extras
    return ContentChange(
        id=node_id,
        content=row.content,
        type=row.type,
        name="" if extras is None else extras.name,
        tags=() if extras is None else extras.tags,
        attributes=attributes,
        sequence=row.sequence,
    )


def _pages(changes: Iterable[ContentChange], most: int) -> _Pages:
    """Yield batches of changes, at least one, and whether more follow."""
    page: list[ContentChange] = []
    size = 0
    for change in changes:
        weight = len(change.content or "") + sum(map(len, map(str, change.attributes.values())))
        if page and (len(page) >= most or size + weight > SINK_BATCH_BYTES):
            yield tuple(page), True
            page, size = [], 0
        page.append(change)
        size += weight
    yield tuple(page), False


class SinkDeliveryObserver(StoreProjectionWorker[StoreFollowedByProjections, list[SinkDelivery]]):
    """Pool observer that delivers every open store to all sinks, and opens stores that are behind."""

    def __init__(self, plugged: list[ConfiguredSink], most: int) -> None:
        self._plugs = plugged
        self._most = most
        self._by_name = {plug.name: ProjectionThread(f"syncer-{plug.name}") for plug in plugged}
        super().__init__(*self._by_name.values())
        self._behind: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._catch_up_thread: threading.Thread | None = None

    def catch_up(self, pool: StorePoolFollowedByProjections) -> None:
        """Start a thread that opens closed stores whose sinks are behind."""
        self._catch_up_thread = threading.Thread(
            target=self._open_stores_behind, args=(pool,), name="syncers", daemon=True
        )
        self._catch_up_thread.start()

    @override
    def halt(self) -> None:
        self._stopping.set()
        self._behind.put(None)
        super().halt()

    def of(self, store: StoreFollowedByProjections) -> list[SinkDelivery]:
        """Return the deliveries of an open store; empty if it is closing."""
        return self.state_of_store(store) or []

    @override
    def close(self) -> None:
        self.halt()
        for plug in self._plugs:
            if self._by_name[plug.name].close():
                plug.close()
        if self._catch_up_thread is not None:
            self._catch_up_thread.join(FOLLOWER_CLOSE_TIMEOUT_SECONDS)

    @override
    def _begun(self, store: StoreFollowedByProjections) -> list[SinkDelivery]:
        return [SinkDelivery(store, plug, self._most) for plug in self._plugs]

    @override
    def _served(self, own: list[SinkDelivery]) -> Iterator[tuple[ProjectionThread, SinkDelivery]]:
        return ((self._by_name[sync.name], sync) for sync in own)

    @override
    def _let_go(self, own: list[SinkDelivery]) -> None:
        for thread, sync in self._served(own):
            store = sync.store.name
            if not thread.forget(sync, FOLLOWER_CLOSE_TIMEOUT_SECONDS):
                log.warning("syncer_left_behind", store=store, syncer=sync.name)
                continue
            if sync.lag:
                self._behind.put(store)
            try:
                sync.close()
            except OSError as error:
                log.warning("syncer_place_not_saved", store=store, syncer=sync.name, error=str(error))

    def _open_stores_behind(self, pool: StorePoolFollowedByProjections) -> None:
        for name in pool.local_store_names():
            if self._stopping.is_set():
                return
            if self._is_behind(pool.layout(name)):
                self._behind.put(name)
        while not self._stopping.is_set() and (name := self._behind.get()) is not None:
            try:
                self._serve(pool, name)
            except NoStore:
                log.info("syncers_store_gone", store=name)
            except (KgserveError, OSError) as error:
                if self._stopping.is_set():
                    return
                log.warning("syncers_passed_over", store=name, error=str(error))
                self._behind.put(name)
                self._stopping.wait(SINK_RETRY_DELAY_SECONDS)

    def _is_behind(self, layout: StoreLayout) -> bool:
        places = [read_sink_position(layout, plug) for plug in self._plugs]
        try:
            last = read_closed_store_state(layout).sequence
        except (KgserveError, OSError):
            return False
        return any(place is None or place.sequence < last for place in places)

    def _serve(self, pool: StorePoolFollowedByProjections, name: str) -> None:
        """Open a store, and give its deliveries time; pause if any fails.

        The store stays open until its slot is needed.
        """
        with pool.lease(name) as store:
            syncs = self.of(store)
        end = time.monotonic() + SINK_SLOT_SECONDS
        while time.monotonic() < end and any(sync.lag and sync.error is None for sync in syncs):
            if self._stopping.wait(0.05):
                return
        if any(sync.error for sync in syncs):
            self._stopping.wait(SINK_RETRY_DELAY_SECONDS)
