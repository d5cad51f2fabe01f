"""Snapshots: all rows of a store at one sequence, as Parquet files with a manifest of checksums.

A folder ``snapshot.<sequence>`` holds nodes.parquet, edges.parquet and manifest.json. It also holds accesses.parquet if
any node was ever accessed, links.parquet if any edge leads into another store, and ended.parquet if any node was
deleted. The folder is written under another name and renamed when its contents are durable. A folder with the right
name is therefore whole unless the disk damaged it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import xxhash
from msgspec.structs import astuple

from kgserve.errors import JournalDamaged
from kgserve.platform.codecs import decode_json
from kgserve.platform.durable_files import fsync_file, fsync_folder, shorten_journal_path, write_file_atomically
from kgserve.platform.lazy_pyarrow import pa, parse_arrow_type, pq
from kgserve.storage.model import node_edge_fields
from kgserve.storage.model.change_set import CrossStoreLinksCountAndDigest, MemoryAccessRecord, StoreState
from kgserve.storage.model.node_edge_fields import LINK_STORE_FIELD, NodeEdgeColumnSet
from kgserve.storage.model.node_edge_rows import (
    CrossStoreLinkRow,
    EdgeRow,
    NodeRow,
    RowTuple,
    edge_column_values,
    edge_rows_from_columns,
    node_rows_from_columns,
)
from kgserve.storage.model.store_rows_digest import (
    format_store_rows_digest,
    parse_store_rows_digest,
    rows_digest,
    update_digest_for_link_changes,
)

SNAPSHOT_PREFIX = "snapshot."
_REMOVED_SUFFIX = ".removed"
_REPLACED_SUFFIX = ".replaced"
NODES_FILE = "nodes.parquet"
EDGES_FILE = "edges.parquet"
ACCESSES_FILE = "accesses.parquet"
LINKS_FILE = "links.parquet"
LAST_VERSIONS_FILE = "ended.parquet"
SNAPSHOT_MANIFEST_FILE = "manifest.json"
SNAPSHOT_FORMAT = 1
MAX_SNAPSHOT_BATCH_ROWS = 10_000
# Without a buffer size, pyarrow reads whole columns of a row group at once.
PARQUET_READ_BUFFER_BYTES = 1 << 20
MAX_SNAPSHOT_BATCH_BYTES = 16 << 20
"""Bytes of the rows read at a time, by their average size; a text may have 1 MiB."""

_FIELDS = {NODES_FILE: node_edge_fields.NODE, EDGES_FILE: node_edge_fields.EDGE}


def build_snapshot_arrow_schema(name: str, width: NodeEdgeColumnSet) -> pa.Schema:
    """Return the Arrow schema of a snapshot's node or edge file; ``width`` selects the columns for optional fields."""
    return pa.schema([(field.wire, parse_arrow_type(field.type.arrow)) for field in _FIELDS[name].columns(width)])


def read_snapshot_column_set(folder: Path | None) -> NodeEdgeColumnSet:
    """Return which set of columns a snapshot's node file has; PLAIN without a snapshot."""
    return (
        NodeEdgeColumnSet.PLAIN
        if folder is None
        else node_edge_fields.NODE.width(len(pq.read_schema(folder / NODES_FILE)))
    )


class SnapshotFileEntry(msgspec.Struct, frozen=True):
    """File of a snapshot: size in bytes and XXH3 checksum of 128 bits, in hexadecimal."""

    bytes: int
    xxh3: str


class SnapshotManifest(msgspec.Struct, frozen=True):
    """Contents of manifest.json: the state of the store, and the snapshot's files by name."""

    format: int
    sequence: int
    time: int
    digest: str
    nodes: int
    edges: int
    files: dict[str, SnapshotFileEntry]

    @property
    def state(self) -> StoreState:
        """State of the store in the snapshot."""
        return StoreState(self.sequence, self.time, parse_store_rows_digest(self.digest), self.nodes, self.edges)


def list_journal_snapshots(folder: Path) -> list[Path]:
    """Return the installed snapshots of a journal's folder, newest first."""
    found = (
        p for p in folder.iterdir() if p.name.startswith(SNAPSHOT_PREFIX) and p.name[len(SNAPSHOT_PREFIX) :].isdecimal()
    )
    return sorted(found, key=parse_snapshot_sequence, reverse=True)


def newest_snapshot_sequence(folder: Path) -> int:
    """Return the sequence of the newest snapshot in a journal's folder; 0 if it has none."""
    return max(map(parse_snapshot_sequence, list_journal_snapshots(folder)), default=0)


def parse_snapshot_sequence(snapshot: Path) -> int:
    """Return the sequence in a snapshot's name."""
    return int(snapshot.name[len(SNAPSHOT_PREFIX) :])


def read_snapshot_row_batches(file: Path) -> Iterator[list[RowTuple]]:
    """Yield the rows of a snapshot's Parquet file as batches of tuples in the order of the Structs' fields."""
    tuples = node_rows_from_columns if file.name == NODES_FILE else edge_rows_from_columns
    for batch in read_snapshot_record_batches(file):
        yield list(tuples([column.to_pylist() for column in batch.columns]))


def read_snapshot_nodes(folder: Path) -> Iterator[NodeRow]:
    """Yield the nodes of a snapshot folder; one batch is in memory at a time."""
    for rows in read_snapshot_row_batches(folder / NODES_FILE):
        yield from (NodeRow(*row) for row in rows)


def read_snapshot_edges(folder: Path) -> Iterator[EdgeRow]:
    """Yield the edges of a snapshot folder; one batch is in memory at a time."""
    for rows in read_snapshot_row_batches(folder / EDGES_FILE):
        yield from (EdgeRow(*row) for row in rows)


def read_snapshot_access_records(snapshot: Path) -> Iterator[list[MemoryAccessRecord]]:
    """Yield batches of the accesses in a snapshot; nothing if it has none. Raises JournalDamaged."""
    if (file := find_optional_snapshot_file(snapshot, ACCESSES_FILE)) is not None:
        for batch in read_snapshot_record_batches(file):
            yield [
                MemoryAccessRecord(*row) for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
            ]


def read_snapshot_cross_store_links(snapshot: Path) -> Iterator[list[CrossStoreLinkRow]]:
    """Yield batches of a snapshot's cross-store links; nothing if it has none. Raises JournalDamaged."""
    if (file := find_optional_snapshot_file(snapshot, LINKS_FILE)) is not None:
        yield from _read_links_file(file)


def _read_links_file(file: Path) -> Iterator[list[CrossStoreLinkRow]]:
    for batch in read_snapshot_record_batches(file):
        stores, *edges = (column.to_pylist() for column in batch.columns)
        yield [
            CrossStoreLinkRow(store, EdgeRow(*edge))
            for store, edge in zip(stores, edge_rows_from_columns(edges), strict=True)
        ]


def read_deleted_node_last_versions(snapshot: Path) -> Iterator[list[tuple[str, int]]]:
    """Yield batches of the last versions of deleted nodes in a snapshot; nothing if it has none.

    Raises JournalDamaged.
    """
    if (file := find_optional_snapshot_file(snapshot, LAST_VERSIONS_FILE)) is not None:
        for batch in read_snapshot_record_batches(file):
            yield [*zip(*(column.to_pylist() for column in batch.columns), strict=True)]


def find_optional_snapshot_file(snapshot: Path, name: str) -> Path | None:
    """Return the path of an optional file of a snapshot, or None. Raises JournalDamaged if its checksum is wrong."""
    entry = _manifest(snapshot).files.get(name)
    if entry is None:
        return None
    _check_file(snapshot / name, entry)
    return snapshot / name


def write_snapshot_access_records(accesses: Iterable[list[MemoryAccessRecord]], folder: Path) -> None:
    """Write batches of memory access records into a snapshot folder; no file if there are no batches."""
    texts, whole, real = (parse_arrow_type(name) for name in ("string", "int64", "double"))
    schema = pa.schema(
        [("id", texts), ("count", whole), ("last", parse_arrow_type("timestamp[us]")), ("confidence", real)]
    )
    _write_part(folder / ACCESSES_FILE, schema, (map(astuple, some) for some in accesses))


def write_snapshot_cross_store_links(links: Iterable[list[CrossStoreLinkRow]], folder: Path) -> None:
    """Write batches of cross-store links into a snapshot folder: the target store, then the edge's columns."""
    schema = pa.schema(
        [
            (LINK_STORE_FIELD, parse_arrow_type("string")),
            *build_snapshot_arrow_schema(EDGES_FILE, NodeEdgeColumnSet.MEMORY),
        ]
    )
    values = ([(row.store, *edge_column_values(astuple(row.edge))) for row in some] for some in links)
    _write_part(folder / LINKS_FILE, schema, values)


def write_deleted_node_last_versions(ended: Iterable[list[tuple[str, int]]], folder: Path) -> None:
    """Write the last version numbers of deleted nodes into a snapshot folder, in batches."""
    schema = pa.schema([("id", parse_arrow_type("string")), ("version", parse_arrow_type("int64"))])
    _write_part(folder / LAST_VERSIONS_FILE, schema, ended)


def open_snapshot_parquet_writer(file: Path, schema: pa.Schema, repeated: Iterable[str] = ()) -> pq.ParquetWriter:
    """Return a writer of a snapshot's file; ``repeated`` names the columns with few distinct values.

    zstd halves the size that pyarrow's default leaves, at the same speed. All versions read both.
    """
    # pyarrow's stubs do not allow a list here.
    dictionary: Any = [*repeated]
    return pq.ParquetWriter(file, schema, use_dictionary=dictionary, compression="zstd", compression_level=3)


def _write_part(file: Path, schema: pa.Schema, slices: Iterable[Iterable[RowTuple]]) -> None:
    coming = iter(slices)
    first = next(coming, None)
    if first is None:
        return
    with open_snapshot_parquet_writer(file, schema) as writer:
        for some in chain([first], coming):
            columns = zip(*some, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))


def read_snapshot_table(file: Path) -> pa.Table:
    """Return all rows of a snapshot's Parquet file under their field names; missing columns are null."""
    found = pq.read_table(file)
    for field in list(build_snapshot_arrow_schema(file.name, NodeEdgeColumnSet.MEMORY))[found.num_columns :]:
        found = found.append_column(field, pa.nulls(found.num_rows, field.type))
    return found.rename_columns(node_edge_fields.get_row_field_names(_FIELDS[file.name].whole))


def read_snapshot_record_batches(file: Path) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a snapshot's Parquet file as Arrow batches, times as integers of microseconds."""
    with pq.ParquetFile(file, pre_buffer=False, buffer_size=PARQUET_READ_BUFFER_BYTES) as parquet:
        for batch in parquet.iter_batches(_rows_per_batch(parquet.metadata)):
            yield pa.RecordBatch.from_arrays(
                [_times_as_integers(column) for column in batch.columns], names=batch.schema.names
            )


def _rows_per_batch(metadata: pq.FileMetaData) -> int:
    # Sizes are summed by column: the total that the engine writes for a row group is wrong.
    at_a_time = MAX_SNAPSHOT_BATCH_ROWS
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        size = sum(group.column(at).total_uncompressed_size for at in range(group.num_columns))
        at_a_time = min(at_a_time, MAX_SNAPSHOT_BATCH_BYTES * group.num_rows // max(size, 1))
    return max(1, at_a_time)


def digest_and_count_snapshot_rows(folder: Path) -> tuple[int, int, int]:
    """Return the digest of a snapshot's rows, and the numbers of its nodes and edges."""
    digest = 0
    counts: list[int] = []
    for name in (NODES_FILE, EDGES_FILE):
        count = 0
        for rows in read_snapshot_row_batches(folder / name):
            digest += rows_digest(rows)
            count += len(rows)
        counts.append(count)
    return digest % (1 << 128), counts[0], counts[1]


def digest_and_count_cross_store_links(folder: Path) -> CrossStoreLinksCountAndDigest | None:
    """Return count and digest of the cross-store links in a snapshot folder; None if it has no file of them."""
    file = folder / LINKS_FILE
    if not file.exists():
        return None
    return reduce(
        lambda state, some: update_digest_for_link_changes(state, some, ()),
        _read_links_file(file),
        CrossStoreLinksCountAndDigest(),
    )


def publish_journal_snapshot(folder: Path, journal_folder: Path, state: StoreState) -> Path:
    """Write the manifest of a folder of rows and rename it to a snapshot of the journal; return its path.

    A snapshot of the same sequence is replaced and must not be in use.
    """
    names = (
        NODES_FILE,
        EDGES_FILE,
        *(name for name in (ACCESSES_FILE, LINKS_FILE, LAST_VERSIONS_FILE) if (folder / name).exists()),
    )
    for name in names:
        fsync_file(folder / name)
    files = {name: _file_entry(folder / name) for name in names}
    manifest = SnapshotManifest(
        SNAPSHOT_FORMAT,
        state.sequence,
        state.time,
        format_store_rows_digest(state.digest),
        state.nodes,
        state.edges,
        files,
    )
    write_file_atomically(folder / SNAPSHOT_MANIFEST_FILE, msgspec.json.format(msgspec.json.encode(manifest)))
    target = journal_folder / f"{SNAPSHOT_PREFIX}{state.sequence}"
    if target.exists():
        target.rename(target.with_name(target.name + _REPLACED_SUFFIX))
    try:
        folder.rename(target)
        fsync_folder(journal_folder)
    finally:
        complete_snapshot_replacements(journal_folder)
    return target


def complete_snapshot_replacements(journal_folder: Path) -> None:
    """Delete the snapshots that were replaced; put those back whose replacement failed or was killed.

    Such a snapshot may be the only one, and the journal may begin after it.
    """
    for replaced in journal_folder.glob(f"{SNAPSHOT_PREFIX}*{_REPLACED_SUFFIX}"):
        target = replaced.with_suffix("")
        if target.exists():
            shutil.rmtree(replaced, ignore_errors=True)
        else:
            replaced.rename(target)
            fsync_folder(journal_folder)


def verify_snapshot(snapshot: Path) -> SnapshotManifest:
    """Return the manifest of a snapshot after checking all files. Raises JournalDamaged naming the wrong file."""
    manifest = _manifest(snapshot)
    for name, entry in manifest.files.items():
        _check_file(snapshot / name, entry)
    return manifest


def _manifest(snapshot: Path) -> SnapshotManifest:
    try:
        manifest = decode_json((snapshot / SNAPSHOT_MANIFEST_FILE).read_bytes(), SnapshotManifest)
    except (OSError, msgspec.MsgspecError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise JournalDamaged(
            f"{shorten_journal_path(snapshot / SNAPSHOT_MANIFEST_FILE)} cannot be read: {reason}"
        ) from error
    if manifest.format != SNAPSHOT_FORMAT or manifest.sequence != parse_snapshot_sequence(snapshot):
        raise JournalDamaged(
            f"{shorten_journal_path(snapshot / SNAPSHOT_MANIFEST_FILE)} has another format or sequence"
        )
    return manifest


def _check_file(path: Path, entry: SnapshotFileEntry) -> None:
    if not path.is_file() or _file_entry(path) != entry:
        raise JournalDamaged(f"{shorten_journal_path(path)} is missing or does not match its checksum")


def find_newest_whole_snapshot(journal_folder: Path, until: int | None = None) -> SnapshotManifest | None:
    """Return the manifest of the newest whole snapshot, optionally up to a sequence; None if none is whole."""
    for snapshot in list_journal_snapshots(journal_folder):
        if until is None or parse_snapshot_sequence(snapshot) <= until:
            with suppress(JournalDamaged):
                return verify_snapshot(snapshot)
    return None


def remove_old_snapshots(journal_folder: Path, keep: int) -> int:
    """Remove all but the newest ``keep`` snapshots; return the oldest remaining sequence, 0 if none remains."""
    snapshots = list_journal_snapshots(journal_folder)
    for snapshot in snapshots[keep:]:
        _remove_snapshot(snapshot)
    for left in journal_folder.glob(f"{SNAPSHOT_PREFIX}*{_REMOVED_SUFFIX}"):
        shutil.rmtree(left, ignore_errors=True)
    return parse_snapshot_sequence(snapshots[:keep][-1]) if snapshots else 0


def _remove_snapshot(snapshot: Path) -> None:
    # Rename before deleting, so that a folder with a snapshot's name is always whole.
    removed = snapshot.with_name(snapshot.name + _REMOVED_SUFFIX)
    shutil.rmtree(removed, ignore_errors=True)
    snapshot.rename(removed)
    fsync_folder(snapshot.parent)
    shutil.rmtree(removed, ignore_errors=True)


def _times_as_integers(column: pa.Array) -> pa.Array:
    return column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column


def _file_entry(path: Path) -> SnapshotFileEntry:
    hasher = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            hasher.update(block)
    return SnapshotFileEntry(path.stat().st_size, hasher.hexdigest())
