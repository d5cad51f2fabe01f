"""Import and export of whole stores.

NDJSON, of kgserve or of the MCP memory server, is imported in bounded batches and constant memory. A store is exported
as it is or as of a moment, or restored from that into a new store. Other formats are converted through files in the
store's scratch folder.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from codecs import BOM_UTF8
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kgserve.admin.store_admin_models import StoreSettingsExportLine
from kgserve.admin.stores import build_store_settings_updater
from kgserve.errors import Conflict, FieldError, InvalidInput, KgserveError, TooLarge
from kgserve.graph.answers import (
    DuplicateImportLine,
    ImportAnswer,
    ImportLineError,
    PointInTimeRestoreAnswer,
    empty_import_answer,
)
from kgserve.graph.as_of_graph import PastMoment
from kgserve.graph.as_of_resolution import VALID_AT_ANY, get_caught_up_history
from kgserve.graph.compat.mcp_memory_server_api import EntityNameRelation, EntityWithObservations
from kgserve.graph.compat.mcp_memory_server_operations import add_missing_endpoint_placeholders
from kgserve.graph.graph_reader import GraphReader, open_graph_reader
from kgserve.graph.request_bodies import (
    ConflictingVersionNdjsonLine,
    EdgeNdjsonLine,
    NodeNdjsonLine,
    PointInTimeRestoreRequest,
)
from kgserve.graph.request_validation import (
    ValidationErrorCollector,
    validate_access_statistics,
    validate_edge_input,
    validate_node_input,
)
from kgserve.graph.store_handle import StoreHandle
from kgserve.graph.transfer.columnar_ndjson_decoder import decode_simple_ndjson_lines, hash_import_row_keys
from kgserve.graph.transfer.formats.import_export_files import (
    PAIR_FORMATS,
    extract_import_zip,
    open_import_source_tables,
    read_stream_as_import_table,
    write_export_zip,
    write_single_file_export,
)
from kgserve.graph.transfer.formats.mcp_memory_server_file import (
    decode_mcp_memory_server_line,
    is_mcp_memory_server_line,
    is_mcp_read_graph_answer_start,
    mcp_entity_to_ndjson_line,
    mcp_relation_to_ndjson_line,
)
from kgserve.graph.transfer.formats.ndjson_exchange_lines import (
    MAX_LINE_BYTES,
    ImportLinesWithSourceMap,
    ImportSourceTable,
)
from kgserve.graph.transfer.observation_merge import OBSERVATIONS_TOO_LONG_MESSAGE, merge_imported_observations
from kgserve.graph.transfer.seen_import_keys import (
    RowKey,
    SeenImportKeys,
    format_duplicate_row_message,
    get_key_of_imported_row,
)
from kgserve.platform.closable import ClosableContext
from kgserve.platform.codecs import find_lone_surrogate, json_decoder
from kgserve.platform.duplicate_json_keys import find_duplicate_json_key, may_have_duplicate_json_keys
from kgserve.platform.durable_files import translate_os_error
from kgserve.platform.file_permissions import create_private_folder
from kgserve.platform.gil_yield import fair_pause_seconds
from kgserve.storage.model.change_feed_events import MAX_SINGLE_EVENT_ROWS
from kgserve.storage.model.change_set import MemoryAccessRecord
from kgserve.storage.model.node_edge_fields import LINK_STORE_FIELD
from kgserve.storage.model.node_edge_rows import NodeRow
from kgserve.storage.model.store_names import check_store_name
from kgserve.storage.model.store_settings import StoreSettings
from kgserve.storage.model.write_batch import CrossStoreLinkUpsert, EdgeUpsert, NodeUpsert, WriteBatch
from kgserve.storage.rows.row_json_encoder import (
    ExportedConflictVersion,
    ExportedNode,
    build_node_export_line,
)
from kgserve.storage.write_planner import MAX_REPORTED_REDIRECTS, MAX_REPORTED_ROWS, UnwrittenRequestRow, WriteReport
from kgserve.stores.open_store import OpenStore
from kgserve.stores.scoped_stores import StoreCreateIfMissingRequest

# Size of a batch: suits the scans of the engine, and equals the maximum size of a line.
IMPORT_BLOCK_BYTES = 8 << 20
# Size of a block of plain lines, which become a base at once.
BULK_BLOCK_BYTES = 16 << 20
# Size of a batch during concurrent requests; enough rows to be reported as a bulk event.
SMALL_IMPORT_BLOCK_BYTES = 1 << 20
SMALL_IMPORT_BLOCK_LINES = MAX_SINGLE_EVENT_ROWS + 1
MAX_BATCHES_IN_FLIGHT = 2
# Time that a batch waits behind other writers before the import fails.
IMPORT_QUEUE_TIMEOUT_SECONDS = 60.0

_LineNumbers = Sequence[int] | NDArray[np.int64]
_Line = NodeNdjsonLine | EdgeNdjsonLine | ConflictingVersionNdjsonLine | StoreSettingsExportLine
_Imported = _Line | EntityWithObservations | EntityNameRelation


class _RowBlock(NamedTuple):
    """The rows of a block of lines, and the line number of each.

    ``heads`` are versions in conflict with nodes, by id: the oldest of each node first, and so on. ``entities`` are
    those of the memory server, by the index of their nodes.
    """

    heads: list[dict[str, NodeUpsert]]
    nodes: list[NodeUpsert]
    edges: list[EdgeUpsert]
    links: list[CrossStoreLinkUpsert]
    accesses: list[MemoryAccessRecord]
    numbers: list[int]
    entities: dict[int, EntityWithObservations]

    def add(self, put: NodeUpsert | EdgeUpsert | CrossStoreLinkUpsert) -> None:
        """Add the row of a line."""
        if isinstance(put, NodeUpsert) and put.is_head:
            self.add_head(put)
        elif isinstance(put, NodeUpsert):
            self.nodes.append(put)
        elif isinstance(put, CrossStoreLinkUpsert):
            self.links.append(put)
        else:
            self.edges.append(put)

    def add_head(self, put: NodeUpsert) -> None:
        """Add a version. The versions of a node go into separate batches, because the last one in a batch would win."""
        batch = next((some for some in self.heads if put.id not in some), None)
        if batch is None:
            self.heads.append(batch := {})
        batch[put.id] = put


_decoder = json_decoder(_Line)
_NO_ENTITIES: Mapping[int, EntityWithObservations] = {}


def _no_requests() -> int:
    return 0


class StreamingImport:
    """Streaming import; every block of whole lines becomes one atomic write.

    `feed` never blocks; when it returns True, call `flush` in a thread. Rows committed before a failure or `abort` are
    kept.
    """

    def __init__(
        self, graph: StoreHandle, *, as_they_are: bool = False, others: Callable[[], int] = _no_requests
    ) -> None:
        """Lease the store, creating it if needed; `finish` or `abort` releases it.

        as_they_are: edges may lead into any store, even one that the caller may not access. While there are ``others``
        (concurrent requests), blocks are small, and each is committed before the next is decoded; pauses are up to the
        caller.
        """
        self._other_requests = others
        self._graph = graph
        self._as_they_are = as_they_are
        self._pool = graph.pool
        self._creation = StoreCreateIfMissingRequest(provisional=True)
        self._store = graph.pool.acquire(graph.name, create=self._creation)
        self._parts: list[bytes] = []
        self._size = self._remainder_bytes = self._newlines = self._unfinished_bytes = 0
        self._lines = 0
        self._in_flight: deque[tuple[Future[WriteReport], _LineNumbers]] = deque()
        self._too_long: deque[int] = deque()
        self._keys = SeenImportKeys()
        state = self._store.state
        self._answer = empty_import_answer(state.sequence)
        self._released = self._succeeded = False
        self._names_entities = False
        self._is_new = state.sequence == 0 and self._store.description.settings == graph.pool.usual
        self._imported_settings: Callable[[StoreSettings], StoreSettings] | None = None
        self._settings_line = 0

    def feed(self, data: bytes) -> bool:
        """Add some bytes; return True when `flush` is due."""
        self._parts.append(data)
        self._size += len(data)
        self._newlines += data.count(b"\n")
        line_end = data.rfind(b"\n")
        self._unfinished_bytes = len(data) - 1 - line_end + (self._unfinished_bytes if line_end < 0 else 0)
        if self._size >= BULK_BLOCK_BYTES or self._unfinished_bytes > MAX_LINE_BYTES:
            return True
        is_small_block = (
            self._size - self._remainder_bytes >= SMALL_IMPORT_BLOCK_BYTES
            and self._newlines >= SMALL_IMPORT_BLOCK_LINES
        )
        return is_small_block and self._other_requests() > 0

    def flush(self) -> None:
        """Decode the complete lines and queue them; blocks while two batches are in flight.

        While there are other requests, blocks until the batches are committed, so that fewer threads compete for the
        interpreter, and the caller's pause takes the writer into account.
        """
        block = b"".join(self._parts)
        end = block.rfind(b"\n") + 1
        self._queue_block(block[:end])
        self._keep_remainder(block[end:])
        while self._in_flight and self._other_requests():
            self._settle_oldest()

    def finish(self, *, faults: int = 0) -> ImportAnswer:
        """Queue the remaining lines and wait for all batches. Raises what a batch raised, such as StorageFull.

        faults: rows skipped before they reached the importer. A store created for an import without any valid row is
        removed.
        """
        try:
            block = b"".join(self._parts)
            self._keep_remainder(b"")
            self._queue_block(block)
            while self._in_flight:
                self._settle_oldest()
            self._apply_settings()
            self._succeeded = not (faults or self._answer.error_count or self._answer.edges_skipped_count)
        finally:
            self.abort()
        self._answer.ok = self._answer.error_count == 0
        return self._answer

    def _apply_settings(self) -> None:
        """Change the settings of a new store. Runs last, because the settings may not allow the types of all rows."""
        if self._imported_settings is None:
            return
        current = self._store.description.settings
        if self._is_new:
            self._store.change_settings(self._imported_settings)
        elif self._imported_settings(current) != current:
            self._answer.settings_kept = True

    def abort(self) -> None:
        """Release the store; remove it if it was created for this import and nothing was written to it."""
        if self._released:
            return
        self._released = True
        if self._creation.made and not self._succeeded:
            if not self._pool.release_or_discard(self._store):
                self._store.confirm_creation()
            return
        try:
            self._store.confirm_creation()
        finally:
            self._pool.release(self._store)

    def _keep_remainder(self, rest: bytes) -> None:
        if len(rest) > MAX_LINE_BYTES:
            while self._in_flight:
                self._settle_oldest()
            message = f"is longer than {MAX_LINE_BYTES} bytes; the lines before it were imported"
            raise InvalidInput(f"line {self._lines + 1} {message}", (FieldError(f"line {self._lines + 1}", message),))
        self._parts = [rest] if rest else []
        self._size = self._remainder_bytes = len(rest)
        self._newlines = 0

    def _queue_block(self, block: bytes) -> None:
        if not block or self._queue_plain(block):
            return
        for start, end in _pieces(block):
            self._queue_lines(block[start:end])

    def _queue_plain(self, block: bytes) -> bool:
        """Queue a block of plain lines with new keys; return False for any other block."""
        count = block.count(b"\n") + (not block.endswith(b"\n"))
        if self._names_entities or not self._store.rows.is_bulk(count):
            return False
        rows = decode_simple_ndjson_lines(block if self._lines else block.removeprefix(BOM_UTF8), count, 3 * len(block))
        if rows is None:
            return False
        lines = np.arange(self._lines + 1, self._lines + 1 + count)
        if not self._keys.add_if_new(hash_import_row_keys(rows), lines[[*rows.node_positions, *rows.edge_positions]]):
            return False
        self._answer.lines = self._lines = self._lines + count
        self._make_room()
        report = self._store.submit_plain(rows, wait=IMPORT_QUEUE_TIMEOUT_SECONDS)
        self._note_queued(report, len(rows.ids), len(rows.sources), lines)
        return True

    def _queue_lines(self, block: bytes) -> None:
        found = self._decode(block)
        if not found.numbers:
            return
        for some in found.heads:
            self._submit(
                WriteBatch(nodes=[*some.values()], touch=False, partial=True, cost=3 * len(block)), found.numbers
            )
        # The cost is estimated from the size of the lines.
        batch = WriteBatch(
            nodes=found.nodes,
            edges=found.edges,
            links=found.links,
            accesses=self._newer_accesses(found.accesses),
            touch=False,
            partial=True,
            cost=3 * len(block),
        )
        self._submit(batch, found.numbers, found.entities)

    def _submit(
        self, batch: WriteBatch, numbers: list[int], entities: Mapping[int, EntityWithObservations] = _NO_ENTITIES
    ) -> None:
        """Queue a batch; blocks while two are in flight."""
        self._make_room()
        if self._names_entities:
            report = self._submit_entities(batch, numbers, entities)
        else:
            report = self._store.submit(batch, wait=IMPORT_QUEUE_TIMEOUT_SECONDS)
        self._note_queued(report, len(batch.nodes), len(batch.edges) + len(batch.links), numbers)

    def _make_room(self) -> None:
        while len(self._in_flight) >= MAX_BATCHES_IN_FLIGHT:
            self._settle_oldest()

    def _note_queued(self, report: Future[WriteReport], nodes: int, edges: int, numbers: _LineNumbers) -> None:
        self._answer.nodes_sent += nodes
        self._answer.edges_sent += edges
        self._in_flight.append((report, numbers))

    def _newer_accesses(self, accesses: list[MemoryAccessRecord]) -> list[MemoryAccessRecord]:
        """Return the accesses later than those in the store; the order and number of lines do not matter."""
        known = self._store.accesses.of(access.id for access in accesses)
        newer: dict[str, MemoryAccessRecord] = {}
        for access in accesses:
            before = newer.get(access.id) or known.get(access.id)
            if before is None or access.last > before.last:
                newer[access.id] = access
        return [*newer.values()]

    def _submit_entities(
        self, batch: WriteBatch, numbers: list[int], entities: Mapping[int, EntityWithObservations]
    ) -> Future[WriteReport]:
        """Queue a batch whose entities keep existing observations, and whose edges get placeholder ends."""

        def prepared() -> WriteBatch:
            with self._store.reading() as rows:
                nodes, too_long = merge_imported_observations(rows, batch.nodes, entities)
                self._too_long.extend(numbers[index] for index in too_long)
                return add_missing_endpoint_placeholders(rows, msgspec.structs.replace(batch, nodes=nodes))

        return self._store.submit_prepared(prepared, wait=IMPORT_QUEUE_TIMEOUT_SECONDS)

    def _decode(self, block: bytes) -> _RowBlock:
        """Return the rows of a block, and the line number of each; a row's ``index`` is its position in that list."""
        found = _RowBlock([], [], [], [], [], [], {})
        keys: list[RowKey] = []
        faults = ValidationErrorCollector()
        for number, line in self._numbered_lines(block):
            if isinstance(line, StoreSettingsExportLine):
                self._read_settings(number, line)
                continue
            if isinstance(line, ConflictingVersionNdjsonLine) and self._store.description.history == "none":
                continue
            index = len(found.numbers)
            put, access = self._checked(index, line, faults)
            if faults.errors:
                self._add_error(number, "; ".join(f"{e.path} {e.message}" for e in faults.errors))
                faults.errors.clear()
                continue
            found.numbers.append(number)
            keys.append(get_key_of_imported_row(put))
            found.add(put)
            if isinstance(line, EntityWithObservations):
                found.entities[index] = line
            if access is not None:
                found.accesses.append(access)
        self._add_repeats(keys, found)
        return found

    def _checked(
        self,
        index: int,
        line: NodeNdjsonLine | EdgeNdjsonLine | EntityWithObservations | EntityNameRelation,
        faults: ValidationErrorCollector,
    ) -> tuple[NodeUpsert | EdgeUpsert | CrossStoreLinkUpsert, MemoryAccessRecord | None]:
        if isinstance(line, EntityWithObservations):
            line = mcp_entity_to_ndjson_line(line)
        elif isinstance(line, EntityNameRelation):
            line = mcp_relation_to_ndjson_line(line)
        if isinstance(line, NodeNdjsonLine):
            return validate_node_input(index, line, faults), validate_access_statistics(line, faults)
        return self._edge(validate_edge_input(index, line, faults), line.to_graph, faults), None

    def _add_repeats(self, keys: list[RowKey], found: _RowBlock) -> None:
        """Report every row of a block whose key occurs on an earlier line."""
        for place, earlier in self._keys.add(keys, found.numbers).items():
            message = format_duplicate_row_message(keys[place], is_entity=place in found.entities)
            self._add_repeat(found.numbers[place], earlier, message)

    def _add_repeat(self, number: int, earlier: int, message: str) -> None:
        if not earlier:
            return
        self._answer.merged_count += 1
        if len(self._answer.merged) < MAX_REPORTED_ROWS:
            self._answer.merged.append(DuplicateImportLine(line=number, earlier_line=earlier, message=message))

    def _read_settings(self, number: int, line: StoreSettingsExportLine) -> None:
        self._add_repeat(number, self._settings_line, "settings of the store: only the later line is used")
        self._settings_line = number
        try:
            self._imported_settings = build_store_settings_updater(line)
            self._imported_settings(self._store.description.settings)
        except InvalidInput as error:
            self._imported_settings = None
            self._add_error(number, str(error))

    def _edge(
        self, put: EdgeUpsert, to_graph: str | None, faults: ValidationErrorCollector
    ) -> EdgeUpsert | CrossStoreLinkUpsert:
        """Return an edge, or its link; `to_graph` names another store even if it equals the name of this one."""
        if to_graph is None:
            return put
        try:
            check_store_name(to_graph)
            if not self._as_they_are:
                self._graph.graphs.caller.require_store(to_graph)
        except KgserveError as error:
            faults(LINK_STORE_FIELD, str(error))
        return CrossStoreLinkUpsert(to_graph, put)

    def _numbered_lines(self, block: bytes) -> Iterator[tuple[int, _Imported]]:
        if not self._lines:
            block = block.removeprefix(BOM_UTF8)
        texts = block.removesuffix(b"\n").split(b"\n")
        first = self._lines + 1
        self._answer.lines = self._lines = self._lines + len(texts)
        if (lines := _decode_block(block, len(texts))) is not None:
            yield from enumerate(lines, first)
            return
        for number, text in enumerate(texts, first):
            try:
                line = self._decode_line(text)
                if (twice := find_duplicate_json_key(text.removeprefix(BOM_UTF8))) is None:
                    yield number, line
                else:
                    self._add_error(number, f"has the key `{twice}` twice in the same object")
            except RecursionError:
                self._add_error(number, "is nested too deeply")
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                if text.strip():
                    self._add_error(number, _decode_error(error, text))

    def _decode_line(self, text: bytes) -> _Imported:
        """Decode a line of the exchange format or of the memory server. Raises msgspec's DecodeError."""
        if not is_mcp_memory_server_line(text):
            return _decoder.decode(text)
        self._names_entities = True
        return decode_mcp_memory_server_line(text)

    def _settle_oldest(self) -> None:
        future, numbers = self._in_flight.popleft()
        report = future.result()
        while self._too_long:
            self._add_error(self._too_long.popleft(), OBSERVATIONS_TOO_LONG_MESSAGE)
        answer = self._answer
        answer.nodes_created += report.nodes_created
        answer.nodes_updated += report.nodes_updated
        answer.nodes_unchanged += report.nodes_unchanged
        answer.edges_created += report.edges_created
        answer.edges_updated += report.edges_updated
        answer.edges_unchanged += report.edges_unchanged
        answer.edges_skipped_count += report.skipped_count
        answer.edges_skipped += _line_errors(report.skipped, numbers, MAX_REPORTED_ROWS - len(answer.edges_skipped))
        answer.error_count += report.rejected_count
        answer.errors += _line_errors(report.rejected, numbers, MAX_REPORTED_ROWS - len(answer.errors))
        answer.sequence = report.sequence
        if report.redirected and len(answer.redirected or ()) < MAX_REPORTED_REDIRECTS:
            answer.redirected = (answer.redirected or {}) | report.redirected

    def _add_error(self, number: int, message: str) -> None:
        self._answer.error_count += 1
        if len(self._answer.errors) < MAX_REPORTED_ROWS:
            self._answer.errors.append(ImportLineError(line=number, message=message))


def _pieces(block: bytes) -> Iterator[tuple[int, int]]:
    """Yield the bounds of pieces of whole lines, of the size of a batch."""
    start = 0
    while start < len(block):
        end = len(block)
        if end - start > IMPORT_BLOCK_BYTES:
            end = block.find(b"\n", start + IMPORT_BLOCK_BYTES) + 1 or end
        yield start, end
        start = end


def _decode_block(block: bytes, count: int) -> list[_Line] | None:
    """Return all lines of a block, if each is one valid object; takes half the time."""
    if block.count(b"}\n{") + 1 == count:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            lines = _decoder.decode_lines(block)
            return lines if len(lines) == count and not may_have_duplicate_json_keys(block) else None
    return None


def _decode_error(error: Exception, text: bytes) -> str:
    if half := find_lone_surrogate(text):
        return half
    if text.lstrip().startswith(b"["):
        return "is a JSON array, but a line must be one object; `jq -c '.[]' FILE` converts an array to lines"
    if is_mcp_read_graph_answer_start(text):
        return (
            "contains all entities and relations in one object, but a line must be one of them; "
            """`jq -c '(.entities[] | {type: "entity"} + .), (.relations[] | {type: "relation"} + .)' FILE` """
            "converts it to lines"
        )
    words = str(error).replace("`$.", "`")
    if words == _MISSING_KIND_MESSAGE and b'"type"' in text:
        return f'{words} ("node" or "edge"); in a file of the memory server, `type` must be "entity" or "relation"'
    return "is incomplete JSON: an object must be on a single line" if words == _TRUNCATED_JSON_MESSAGE else words


_MISSING_KIND_MESSAGE = "Object missing required field `kind`"
_TRUNCATED_JSON_MESSAGE = "Input data was truncated"


def _line_errors(rows: list[UnwrittenRequestRow], numbers: _LineNumbers, room: int) -> list[ImportLineError]:
    return [ImportLineError(line=int(numbers[row.index]), message=row.reason) for row in rows[: max(room, 0)]]


_encode = msgspec.json.Encoder().encode_lines


class SettingsAndConflictLines:
    """The settings of a store as a line, and versions in conflict, each on a line before that of its node."""

    def __init__(self, graph: StoreHandle, store: OpenStore) -> None:
        self._graph = graph
        self._store = store

    def settings(self) -> Iterator[bytes]:
        """Yield the line, if any setting differs from that of a new store."""
        chosen, usual = map(msgspec.to_builtins, (self._store.description.settings, self._graph.pool.usual))
        differing = _differing(chosen, usual)
        if "memory" in differing:
            differing["memory"] = _differing(chosen["memory"], usual["memory"])
        if differing:
            yield _encode([{"kind": "store", **differing}])

    def among(self, lines: list[ExportedNode]) -> list[ExportedNode]:
        """Return lines of nodes with those of known versions in conflict."""
        if all(line.conflicts is msgspec.UNSET for line in lines):
            return lines
        return [each for line in lines for each in (*self._conflicting_versions(line), line)]

    def _conflicting_versions(self, line: ExportedNode) -> list[ExportedNode]:
        named = () if line.conflicts is msgspec.UNSET else sorted(line.conflicts)
        rows = [row for version in named if (row := self._find_version(line.id, version)) is not None]
        lines = [build_node_export_line(row, ExportedConflictVersion) for row in rows]
        for place, each in enumerate((*lines, line)):
            each.conflicts = [row.version for row in rows[:place]] or msgspec.UNSET
        return lines

    def _find_version(self, node_id: str, version: int) -> NodeRow | None:
        try:
            follower = get_caught_up_history(self._graph.graphs.historian, self._store)
        except Conflict:  # no history is kept
            return None
        state = follower.look(lambda history: history.node_version(node_id, version))
        return None if state is None else state.row


def _differing(chosen: dict[str, Any], usual: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in chosen.items() if value != usual[name]}


class ExportStream(ClosableContext):
    """Settings, nodes, edges and links of one commit, as blocks of NDJSON lines; a context manager.

    The settings are the current ones. The store is leased until the stream is closed.
    """

    def __init__(self, extra: SettingsAndConflictLines, reader: GraphReader, release: Callable[[], None]) -> None:
        self.sequence = reader.sequence
        self._extra = extra
        self._reader = reader
        self._release = release

    @override
    def close(self) -> None:
        """Release the store."""
        release, self._release = self._release, lambda: None
        release()

    def __iter__(self) -> Iterator[bytes]:
        yield from self._extra.settings()
        for nodes, edges in self._reader.export():
            yield _encode(self._extra.among(nodes)) if nodes else _encode(edges)


def open_store_export_stream(
    graph: StoreHandle, valid_at: str | None = None, past: PastMoment | None = None
) -> ExportStream:
    """Return a stream of the rows of a store, now or as of a moment; it leases the store until it is closed.

    With ``valid_at`` (RFC 3339), only rows valid at that time. Raises NotFound, and what `PastMoment.of` raises.
    """
    with ExitStack() as stack:
        leased = stack.enter_context(graph.lease())
        if past is None:
            leased.accesses.flush_and_wait()
        moment = VALID_AT_ANY if valid_at is None else valid_at
        reader = stack.enter_context(open_graph_reader(leased, past, moment, links=True))
        return ExportStream(SettingsAndConflictLines(graph, leased), reader, stack.pop_all().close)


def restore_past_state_to_new_store(graph: StoreHandle, request: PointInTimeRestoreRequest) -> PointInTimeRestoreAnswer:
    """Create a new store from a past moment, with its versions, times and open conflicts and the current settings.

    The original store does not change.

    Raises Conflict when the new store exists, Gone when the moment is no longer in the history.
    """
    with open_store_export_stream(graph, past=PastMoment(graph.graphs.historian, request.as_of)) as stream:
        if not graph.pool.create(request.into):
            raise Conflict(f"store {request.into!r} exists already; restore into a new one")
        importer = StreamingImport(graph.graphs.graph(request.into), as_they_are=True)
        try:
            for block in stream:
                if importer.feed(block):
                    importer.flush()
            done = importer.finish()
        except BaseException:
            importer.abort()
            graph.pool.drop(request.into)
            raise
    return PointInTimeRestoreAnswer(
        name=request.into,
        nodes=done.nodes_created,
        edges=done.edges_created,
        from_sequence=stream.sequence,
        sequence=done.sequence,
    )


MAX_UPLOAD_BYTES = 4 << 30
"""Size of a body that is spooled to disk before it is read."""
ARCHIVE_FORMAT = "archive"
"""Format of a body that is an archive of CSV or Parquet."""
_UPLOAD_READ_BYTES = 256 << 10


class ConvertedExport(ClosableContext):
    """An export in another format, in an unnamed temporary file; a context manager."""

    def __init__(self, graph: StoreHandle, stream: ExportStream, kind: str) -> None:
        """Write the file, and close the stream. Raises StorageFull."""
        self.sequence = stream.sequence
        self._stack = ExitStack()
        try:
            with stream:
                scratch = _scratch(graph)
                self._file = self._stack.enter_context(_temporary_file(scratch))
                if kind in PAIR_FORMATS:
                    write_export_zip(kind, stream, self._file)
                else:
                    write_single_file_export(kind, stream, self._file, scratch)
            self.size = self._file.tell()
            self._file.seek(0)
        except OSError as error:
            self.close()
            raise translate_os_error(error, "writing an export") from error
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[bytes]:
        return iter(partial(self._file.read, _UPLOAD_READ_BYTES), b"")

    @override
    def close(self) -> None:
        """Delete the file."""
        self._stack.close()


class ForeignFormatImport:
    """Running import from a format other than the exchange format; its body is spooled to disk before it is read."""

    def __init__(self, graph: StoreHandle, kind: str, others: Callable[[], int] = _no_requests) -> None:
        """Lease the store, creating it if needed; `finish` or `abort` releases it.

        While there are ``others`` (concurrent requests), it pauses as `fair_pause_seconds` says.
        """
        self._kind = kind
        self._other_requests = others
        self._importer = StreamingImport(graph, others=others)
        self._size = 0
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="import-", dir=_scratch(graph)))
            self._body = self._folder / "body"
            self._file = self._body.open("wb+")
        except OSError as error:
            self._importer.abort()
            raise translate_os_error(error, "taking an import") from error
        except BaseException:
            self._importer.abort()
            raise

    def write(self, data: bytes) -> None:
        """Add some bytes. Raises TooLarge and StorageFull."""
        self._size += len(data)
        if self._size > MAX_UPLOAD_BYTES:
            raise TooLarge(f"the body is over {MAX_UPLOAD_BYTES >> 30} GiB; use `kgserve import`, or send JSON lines")
        try:
            self._file.write(data)
        except OSError as error:
            raise translate_os_error(error, "taking an import") from error

    def finish(self) -> ImportAnswer:
        """Read and commit the body. Raises InvalidInput if it is not of the expected format."""
        try:
            with ExitStack() as stack:
                conversion = ImportLinesWithSourceMap(self._parts(stack))
                begun = time.perf_counter()
                for block in conversion.blocks():
                    if self._importer.feed(block):
                        self._importer.flush()
                        time.sleep(fair_pause_seconds(time.perf_counter() - begun, self._other_requests()))
                        begun = time.perf_counter()
                return conversion.translate_answer(self._importer.finish(faults=conversion.fault_count))
        except OSError as error:
            raise translate_os_error(error, "reading an import") from error
        finally:
            self.abort()

    def abort(self) -> None:
        """Delete the files, and release the store."""
        self._file.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._importer.abort()

    def _parts(self, stack: ExitStack) -> list[ImportSourceTable]:
        self._file.flush()
        self._file.seek(0)
        if self._kind == ARCHIVE_FORMAT:
            kind, paths = extract_import_zip(self._file, self._folder)
            return open_import_source_tables(kind, paths, stack)
        return [read_stream_as_import_table(self._kind, self._file, "")]


def _temporary_file(scratch: Path) -> BinaryIO:
    return tempfile.TemporaryFile(dir=scratch)


def _scratch(graph: StoreHandle) -> Path:
    with graph.lease() as store:
        create_private_folder(store.layout.scratch)
        return store.layout.scratch
