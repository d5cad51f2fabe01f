"""A store and its reference model: each step is applied to both, then they are compared."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal, Self, get_args

import msgspec
from typing_extensions import override

from kgserve.errors import InvalidInput, NotFound, Unavailable
from kgserve.graph import row_to_api_conversion
from kgserve.graph.url_parameters import NodeListParameters
from kgserve.platform.settings import Settings
from kgserve.platform.timestamps import format_rfc3339_timestamp, parse_rfc3339_timestamp
from kgserve.storage.journal import snapshot
from kgserve.storage.journal.journal import list_journal_segments, read_journal_frame
from kgserve.storage.model.breadth_first_traversal import TraversalRequest
from kgserve.storage.model.node_and_memory_filters import NodeFilter, PagePosition
from kgserve.storage.model.node_edge_rows import EdgeRow, NodeRow
from kgserve.storage.model.store_settings import StoreSettings
from kgserve.storage.model.write_batch import WriteBatch
from kgserve.storage.rows.breadth_first_row_traversal import load_traversal_result, traverse_rows_breadth_first
from kgserve.storage.store_folder_layout import StoreLayout
from kgserve.storage.write_planner import WriteReport
from kgserve.stores.open_store import OpenStore
from kgserve.stores.pool import StorePool
from tests.engines import ENGINE
from tests.graphs import graph_of, node_of, nodes_of
from tests.projections.cypher_engine.driver.reading import Contents, contents
from tests.property.graph import BatchRejection, Graph, Outcome, extras_of
from tests.stores.writing import ask, copy_in_use, held, until

NAME = "s"
CATCH_UP_TIMEOUT_SECONDS = 120
Damage = Literal[
    "engine gone",
    "engine cut",
    "engine flipped",
    "catalog gone",
    "rows gone",
    "rows cut",
    "rows flipped",
    "description gone",
    "snapshot flipped",
]
DAMAGES: tuple[Damage, ...] = get_args(Damage)


class Driver:
    """One store in its own folder, through restarts and crashes; `end` removes ``root``."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.root = root
        self.graph = Graph()
        self._options: dict[str, Any] = {"buffer_pool_mb": 64, "check_interval": 0, "journal_segment_mb": 1, **options}
        self._life = 0
        self._open()

    def end(self) -> None:
        """Close the store and remove its files."""
        self._close()
        shutil.rmtree(self.root, ignore_errors=True)

    # Writes

    def write(self, *batches: WriteBatch) -> None:
        """Queue batches, wait for all of them, and compare their reports."""
        self._settle(batches, [self.store.submit(batch, wait=CATCH_UP_TIMEOUT_SECONDS) for batch in batches])

    def write_group(self, *batches: WriteBatch) -> None:
        """Write batches as one group: the writer is blocked until all of them are queued."""
        with held(self.store):
            futures = [self.store.submit(batch, wait=CATCH_UP_TIMEOUT_SECONDS) for batch in batches]
        self._settle(batches, futures)

    def _settle(self, batches: Sequence[WriteBatch], futures: Sequence[Future[WriteReport]]) -> list[Graph]:
        """Apply batches to the graph. Return the graph after each batch, starting with the one before the first."""
        for future in futures:
            future.exception(CATCH_UP_TIMEOUT_SECONDS)
        times = {change.sequence: change.time for change in self.store.journal.read(self.graph.sequence)}
        stages = [self.graph]
        for batch, future in zip(batches, futures, strict=True):
            self.graph = self.graph.copy()
            stages.append(self.graph)
            try:
                expected = self.graph.write(batch, times.get(self.graph.sequence + 1, 0))
            except BatchRejection:
                assert isinstance(future.exception(), InvalidInput), future
            else:
                found = _counts(future.result())
                assert found == expected, f"{found} instead of {expected}"
        assert self.store.state.sequence == self.graph.sequence
        assert self.store.engine.rebuilds == self._rebuilds, "the engine failed at a write and was rebuilt"
        return stages

    def change_rules(self, *, keeps_both: bool, kinds: tuple[str, ...]) -> None:
        """Change the conflict policy and the allowed types."""
        chosen = StoreSettings(conflict_policy="manual" if keeps_both else "lww", kind_whitelist=kinds)
        self.store.change_settings(lambda _: chosen)
        self.graph = self.graph.copy()
        self.graph.keeps_both, self.graph.kinds = keeps_both, frozenset(kinds)

    # Restarts and crashes

    def restart(self, damage: Damage | None = None) -> None:
        """Close cleanly, optionally damage a file that can be rebuilt, and open again."""
        self._close()
        if damage is not None:
            _damage(self._layout(), damage)
        if damage == "description gone":
            self.graph.keeps_both, self.graph.kinds = False, frozenset()
        self._open()
        ask(self.store)
        self._rebuilds = self.store.engine.rebuilds
        if damage is None:
            assert self._rebuilds == 0
        self.compare()

    def crash(self, *under_way: WriteBatch, torn: int = 0) -> None:
        """Continue with a copy of the current files, taken while batches are in progress.

        ``torn`` bytes of an unfinished frame are left at the journal's end.
        """
        acknowledged = self.graph.sequence
        futures = [self.store.submit(batch, wait=CATCH_UP_TIMEOUT_SECONDS) for batch in under_way]
        copy = self.root / f"{self._life + 1}"
        copy_in_use(self._data, copy)
        stages = self._settle(under_way, futures)
        self._close()
        shutil.rmtree(self._data)
        self._life += 1
        self._tear(torn)
        self._open()
        found = self.store.state.sequence
        assert acknowledged <= found <= stages[-1].sequence
        self.graph = next(stage for stage in stages if stage.sequence == found)
        ask(self.store)
        self._rebuilds = self.store.engine.rebuilds
        self.compare()

    def compact(self, *under_way: WriteBatch) -> None:
        """Compact with batches in progress, while a reader checks snapshots."""
        done, stop = self.store.compactor.done, threading.Event()
        with (
            ConcurrentTask(self.store.compactor.run) as compacting,
            ConcurrentTask(lambda: self._read_on(stop)) as reading,
        ):
            futures = [self.store.submit(batch, wait=CATCH_UP_TIMEOUT_SECONDS) for batch in under_way]
            try:
                self._settle(under_way, futures)
            finally:
                compacting.join(CATCH_UP_TIMEOUT_SECONDS)
                stop.set()
        for error in (*compacting.errors, *reading.errors):
            raise error
        assert self.store.compactor.done > done, "the compaction failed"
        ask(self.store)
        until(lambda: len(list(self._layout().root.glob("graph*.kuzu"))) == 1)
        self.compare()

    def check(self) -> None:
        """Run the store's own consistency check, which must succeed."""
        assert self.store.check().ok
        assert self.store.engine.rebuilds == self._rebuilds

    def fold(self, *under_way: WriteBatch) -> None:
        """Fold the rows into a new base with batches in progress."""
        with self.store.reading() as rows, ConcurrentTask(self.store.rows.fold) as folding:
            before = sorted(rows.all_nodes(), key=lambda row: row.id), rows.at
            self._settle(under_way, [self.store.submit(batch, wait=CATCH_UP_TIMEOUT_SECONDS) for batch in under_way])
            folding.join(CATCH_UP_TIMEOUT_SECONDS)
            assert (sorted(rows.all_nodes(), key=lambda row: row.id), rows.at) == before, "a snapshot has changed"
        for error in folding.errors:
            raise error
        self.store.rows.fold()
        assert self.store.rows.base_sequence == self.graph.sequence
        self.compare()

    # Reads

    def look(self, request: TraversalRequest, wanted: NodeListParameters | None = None) -> None:
        """Traverse from a node, get it, and list all nodes in small pages; optionally at a valid time."""
        self._look_around(request)
        self._look_at(request.start, request.valid_at)
        self._list(wanted or NodeListParameters(), request.depth + 3)

    def _look_around(self, request: TraversalRequest) -> None:
        with self.store.reading() as rows:
            found = load_traversal_result(rows, traverse_rows_breadth_first(rows, request))
        graph = self.graph.true_at(request.valid_at)
        depths, edges, more = graph.walk(msgspec.structs.replace(request, valid_at=None))
        assert {row.id: depth for row, depth in found.nodes} == depths
        assert [row for row, _ in found.nodes] == [graph.nodes[node_id] for node_id in depths]
        assert {row.key for row in found.edges} == edges
        assert {row.key: row for row in found.edges} == {key: graph.edges[key] for key in edges}
        assert (len(found.edges), found.truncated) == (len(edges), more), request

    def _look_at(self, node_id: str, valid_at: int | None) -> None:
        graph, moment = self.graph.true_at(valid_at), None if valid_at is None else format_rfc3339_timestamp(valid_at)
        if node_id not in graph.nodes:
            with contextlib.suppress(NotFound):
                raise AssertionError(node_of(graph_of(self.pool, NAME), node_id, valid_at=moment))
            return
        found = node_of(graph_of(self.pool, NAME), node_id, valid_at=moment)
        outgoing, incoming = (
            {(e.source, e.target, e.relation_type) for e in es} for es in (found.outgoing, found.incoming)
        )
        assert found.node == row_to_api_conversion.build_api_node_from_row(graph.nodes[node_id])
        if not found.edges_truncated:
            assert outgoing == {key for key in graph.edges if key[0] == node_id}
            assert incoming == {key for key in graph.edges if key[1] == node_id}

    def _list(self, wanted: NodeListParameters, pages: int) -> None:
        rows = listed(self.graph, wanted)
        limit = min(1000, len(rows) // pages + 1)
        cursor: str | None = None
        for start in range(0, pages * limit, limit):
            asked = msgspec.structs.replace(wanted, limit=limit, cursor=cursor)
            page = nodes_of(graph_of(self.pool, NAME), asked)
            assert page.nodes == [
                row_to_api_conversion.build_api_node_from_row(row) for row in rows[start : start + limit]
            ]
            cursor = page.next_cursor
            if cursor is None:
                break

    def compare(self) -> None:
        """Compare all contents in both directions, and the derived data."""
        found, graph = self._contents(), self.graph
        differ(found.nodes, graph.nodes, [row.id for row in found.nodes])
        differ(found.outgoing, graph.edges, [row.key for row in found.outgoing])
        bare = {key: msgspec.structs.replace(row, extras=None) for key, row in graph.edges.items()}
        differ(found.incoming, bare, [row.key for row in found.incoming])
        state = found.state
        assert state == self.store.state == self.store.engine.state
        assert (state.sequence, state.nodes, state.edges) == (graph.sequence, len(graph.nodes), len(graph.edges))
        assert state.digest == graph.digest
        self._compare_rows()
        self._compare_catalog()

    def _can_be_read(self) -> bool:
        """Return True if all rows are readable; a damaged one triggers a rebuild, after which the caller retries."""
        try:
            with self.store.reading() as rows:
                return bool([*rows.all_nodes(), *rows.all_edges(), True])
        except Unavailable:
            return False

    def _compare_rows(self) -> None:
        until(self._can_be_read, CATCH_UP_TIMEOUT_SECONDS)
        with self.store.reading() as rows:
            nodes, edges, ids = list(rows.all_nodes()), list(rows.all_edges()), list(rows.ids_after(""))
            incoming = [row for node_id in ids for row in rows.incoming(node_id)]
            outgoing = [row for node_id in ids for row in rows.outgoing(node_id)]
        assert ids == sorted(self.graph.nodes)
        differ(nodes, self.graph.nodes, [row.id for row in nodes])
        for found in (edges, incoming, outgoing):
            differ(found, self.graph.edges, [row.key for row in found])

    def _compare_catalog(self) -> None:
        ids, types, relations, tags = self.store.query_catalog(
            lambda c, _: (
                c.list_matching_ids(NodeFilter(), PagePosition(), 1 << 40),
                c.types(99),
                c.relation_types(99),
                c.tags("", 99),
            )
        )
        assert ids.items == sorted(self.graph.nodes)[: len(ids.items)]
        assert types == _tally(row.type for row in self.graph.nodes.values())
        assert relations == _tally(key[2] for key in self.graph.edges)
        used = _tally(tag for row in self.graph.nodes.values() for tag in extras_of(row)["tags"])
        assert [(each.tag, each.count) for each in tags] == sorted(used.items(), key=lambda tag: (-tag[1], tag[0]))

    def _contents(self) -> Contents:
        with self.store.engine.reading(timeout=0) as session:
            return contents(session)

    def _read_on(self, stop: threading.Event) -> None:
        folder = self.root / "reader"
        folder.mkdir(exist_ok=True)
        while not stop.is_set():
            with self.store.engine.reading(timeout=0) as session:
                state = session.dump(folder)
            assert snapshot.digest_and_count_snapshot_rows(folder) == (state.digest, state.nodes, state.edges), (
                "a reader saw half a write"
            )

    # Files

    @property
    def _data(self) -> Path:
        return self.root / f"{self._life}"

    def _layout(self) -> StoreLayout:
        return StoreLayout(self._data, NAME)

    def _open(self) -> None:
        self.pool = StorePool(Settings(data_dir=self._data, engine=ENGINE, **self._options))
        self.store: OpenStore = self.pool.acquire(NAME, create=True)
        self._rebuilds = 0

    def _close(self) -> None:
        self.pool.release(self.store)
        self.pool.close()

    def _tear(self, size: int) -> None:
        """Leave the beginning of a frame at the journal's end, never a complete one."""
        newest = list_journal_segments(self._layout().journal)[-1]
        if not size or not newest.size:
            return
        with newest.path.open("r+b") as file:
            frame = read_journal_frame(file, 0, newest.size)
            file.seek(0)
            part = file.read(min(size, frame.end - 1))
            file.seek(newest.size)
            file.write(part)


def differ(found: Sequence[NodeRow | EdgeRow], wanted: dict[Any, Any], keys: Sequence[Any]) -> None:
    """Fail, naming some rows, unless the rows found are exactly the expected ones, each once."""
    assert len(set(keys)) == len(keys), "the engine holds a key twice"
    held = dict(zip(keys, found, strict=True))
    if held != wanted:
        lost, extra = list(wanted.keys() - held.keys())[:3], list(held.keys() - wanted.keys())[:3]
        other = [(held[k], wanted[k]) for k in held.keys() & wanted.keys() if held[k] != wanted[k]][:2]
        raise AssertionError(f"lost {lost}, extra {extra}, other {other}; {len(held)} rows, {len(wanted)} wanted")


def listed(graph: Graph, wanted: NodeListParameters) -> list[NodeRow]:
    """Return the expected content of a list over all of its pages."""
    true = graph.true_at(None if wanted.valid_at in (None, "any") else parse_rfc3339_timestamp(wanted.valid_at))
    return [
        row
        for _, row in sorted(true.nodes.items())
        if (not wanted.type or row.type in wanted.type) and all(tag in extras_of(row)["tags"] for tag in wanted.tag)
    ]


def _counts(report: WriteReport) -> Outcome:
    return msgspec.convert(report, Outcome, from_attributes=True)


class ConcurrentTask(threading.Thread):
    """Thread that works during a block and is joined at its end; ``errors`` holds its exceptions."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self.errors: list[Exception] = []

    @override
    def run(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001  # re-raised in the block
            self.errors.append(error)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.join(CATCH_UP_TIMEOUT_SECONDS)


def _tally(names: Iterable[str]) -> dict[str, int]:
    return dict(Counter(names))


def _damage(layout: StoreLayout, damage: Damage) -> None:
    match damage:
        case "engine gone" | "engine cut" | "engine flipped":
            _harm(layout.engine, damage)
        case "rows gone" | "rows cut" | "rows flipped":
            for path in layout.rows.iterdir():
                _harm(path, damage)
        case "catalog gone":
            layout.catalog.unlink(missing_ok=True)
        case "description gone":
            (layout.root / "store.json").unlink()
        case "snapshot flipped":
            # Only while the journal is complete from the start: otherwise the last copy could be damaged.
            if list_journal_segments(layout.journal)[0].first == 1:
                for path in snapshot.list_journal_snapshots(layout.journal)[:1]:
                    _flip(path / snapshot.NODES_FILE)
            layout.engine.unlink(missing_ok=True)
            shutil.rmtree(layout.rows)


def _harm(path: Path, damage: str) -> None:
    if not path.exists():
        return
    if damage.endswith("gone"):
        path.unlink()
    elif damage.endswith("cut"):
        os.truncate(path, path.stat().st_size // 2)
    else:
        _flip(path)


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)
