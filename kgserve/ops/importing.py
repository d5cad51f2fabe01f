"""Importing NDJSON, ours and the memory server's: lines in, bounded batches out, in constant memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import NamedTuple

import msgspec

from kgserve.decoding import json_decoder
from kgserve.errors import FieldError, InvalidInput, KgserveError
from kgserve.formats.memory_server import is_memory_line, memory_line
from kgserve.model.answers import MAX_REDIRECTED, ImportAnswer, LineError
from kgserve.model.batch import EdgePut, LinkPut, NodePut, WriteBatch
from kgserve.model.change import Access
from kgserve.model.fields import STORE
from kgserve.model.plan import MAX_NOTED, LeftOut, Report
from kgserve.model.requests import EdgeLine, HeadLine, NodeLine, check_store_name
from kgserve.model.stores import StoreLine, StoreSettings
from kgserve.ops.entities import completed
from kgserve.ops.graph import Graph
from kgserve.ops.stores import checked_settings
from kgserve.ops.validate import Faults, edge_put, node_access, node_put

# A block is what one batch takes in: as large as the engine likes its scans, and no larger than a line may be.
BLOCK_BYTES = 8 << 20
MAX_LINE_BYTES = 8 << 20
BATCHES_IN_FLIGHT = 2
# An import gives way to other writers for as long as this before it gives up.
QUEUE_SECONDS = 60.0

_Line = NodeLine | EdgeLine | HeadLine | StoreLine


class _Block(NamedTuple):
    """The rows of a block of lines, and the line number of each.

    ``heads`` are versions that nodes stand beside, by their ids: the oldest of each node first, and so on.
    """

    heads: list[dict[str, NodePut]]
    nodes: list[NodePut]
    edges: list[EdgePut]
    links: list[LinkPut]
    accesses: list[Access]
    numbers: list[int]

    def add_head(self, put: NodePut) -> None:
        """Take in a version; each of a node goes by a batch of its own, for of one batch the last would count."""
        batch = next((some for some in self.heads if put.id not in some), None)
        if batch is None:
            self.heads.append(batch := {})
        batch[put.id] = put


_decoder = json_decoder(_Line)


class Importer:
    """Takes the bytes of an import as they come; every block of whole lines becomes one atomic write.

    `feed` never blocks; when it says so, `flush` is to be called in a thread. What was committed before a failure or
    `abort` stays.
    """

    def __init__(self, graph: Graph, *, as_they_are: bool = False) -> None:
        """Lease the store, making it if needed; give it back with `finish` or `abort`.

        ``as_they_are``: edges may lead into any store, be it seen or not.
        """
        self._graph = graph
        self._as_they_are = as_they_are
        self._pool = graph.pool
        self._store = graph.pool.acquire(graph.name, create=True)
        self._parts: list[bytes] = []
        self._size = 0
        self._lines = 0
        self._flying: deque[tuple[Future[Report], list[int]]] = deque()
        state = self._store.state
        self._answer = _empty_answer(state.sequence)
        self._released = False
        self._names_entities = False
        self._is_new = state.sequence == 0 and self._store.description.settings == graph.pool.usual
        self._chosen: Callable[[StoreSettings], StoreSettings] | None = None

    def feed(self, data: bytes) -> bool:
        """Take some bytes; true when `flush` is due."""
        self._parts.append(data)
        self._size += len(data)
        return self._size >= BLOCK_BYTES

    def flush(self) -> None:
        """Decode the whole lines there are and queue them; blocks while two batches are under way."""
        block = b"".join(self._parts)
        end = block.rfind(b"\n") + 1
        self._take(block[:end])
        self._keep(block[end:])

    def finish(self) -> ImportAnswer:
        """Queue what is left and wait for everything. Raises what a batch met, such as StorageFull."""
        try:
            block = b"".join(self._parts)
            self._keep(b"")
            self._take(block)
            while self._flying:
                self._land()
            # Last, for what the store takes may not be all that it had taken before.
            if self._chosen is not None and self._is_new:
                self._store.change_settings(self._chosen)
        finally:
            self.abort()
        self._answer.ok = self._answer.error_count == 0
        return self._answer

    def abort(self) -> None:
        """Give the store back."""
        if not self._released:
            self._released = True
            self._pool.release(self._store)

    def _keep(self, rest: bytes) -> None:
        if len(rest) > MAX_LINE_BYTES:
            while self._flying:
                self._land()
            message = f"is longer than {MAX_LINE_BYTES} bytes; the lines before it are in"
            raise InvalidInput(f"line {self._lines + 1} {message}", (FieldError(f"line {self._lines + 1}", message),))
        self._parts = [rest] if rest else []
        self._size = len(rest)

    def _take(self, block: bytes) -> None:
        if not block:
            return
        heads, nodes, edges, links, accesses, numbers = self._decode(block)
        if not numbers:
            return
        for some in heads:
            self._fly(WriteBatch(nodes=[*some.values()], touch=False, partial=True, cost=3 * len(block)), numbers)
        # The lines were measured when they came in: no need to add up the rows.
        newer = self._newer(accesses)
        batch = WriteBatch(
            nodes=nodes,
            edges=edges,
            links=links,
            accesses=newer,
            touch=False,
            partial=True,
            cost=3 * len(block),
        )
        self._fly(batch, numbers)

    def _fly(self, batch: WriteBatch, numbers: list[int]) -> None:
        """Queue a batch; blocks while two are under way."""
        while len(self._flying) >= BATCHES_IN_FLIGHT:
            self._land()
        report = self._of_entities(batch) if self._names_entities else self._store.submit(batch, wait=QUEUE_SECONDS)
        self._answer.nodes_sent += len(batch.nodes)
        self._answer.edges_sent += len(batch.edges) + len(batch.links)
        self._flying.append((report, numbers))

    def _newer(self, accesses: list[Access]) -> list[Access]:
        """Those that are later than what the store knows: which lines come first does not matter, nor how often."""
        known = self._store.accesses.of(access.id for access in accesses)
        newer: dict[str, Access] = {}
        for access in accesses:
            before = newer.get(access.id) or known.get(access.id)
            if before is None or access.last > before.last:
                newer[access.id] = access
        return [*newer.values()]

    def _of_entities(self, batch: WriteBatch) -> Future[Report]:
        """Queue a batch whose edges need not have their ends."""

        def prepared() -> WriteBatch:
            with self._store.reading() as rows:
                return completed(rows, batch)

        return self._store.submit_prepared(prepared, wait=QUEUE_SECONDS)

    def _decode(self, block: bytes) -> _Block:
        """The rows of a block, and the line number of each; a row's ``index`` is its place in that list."""
        found = _Block([], [], [], [], [], [])
        faults = Faults()
        for number, line in self._numbered(block):
            if isinstance(line, StoreLine):
                self._choose(number, line)
                continue
            if isinstance(line, HeadLine) and self._store.description.history == "none":
                continue
            index, access = len(found.numbers), None
            if isinstance(line, NodeLine):
                put: NodePut | EdgePut | LinkPut = node_put(index, line, faults)
                access = node_access(line, faults)
            else:
                put = self._edge(edge_put(index, line, faults), line.to_graph, faults)
            if faults.errors:
                self._note(number, "; ".join(f"{e.path} {e.message}" for e in faults.errors))
                faults.errors.clear()
                continue
            found.numbers.append(number)
            if isinstance(put, NodePut) and put.is_head:
                found.add_head(put)
            elif isinstance(put, NodePut):
                found.nodes.append(put)
            elif isinstance(put, LinkPut):
                found.links.append(put)
            else:
                found.edges.append(put)
            if access is not None:
                found.accesses.append(access)
        return found

    def _choose(self, number: int, line: StoreLine) -> None:
        try:
            self._chosen = checked_settings(line)
            self._chosen(self._store.description.settings)
        except InvalidInput as error:
            self._chosen = None
            self._note(number, str(error))

    def _edge(self, put: EdgePut, to_graph: str | None, faults: Faults) -> EdgePut | LinkPut:
        """An edge, or the link that it is; one into a store of this name was one into another store where it was."""
        if to_graph is None:
            return put
        try:
            check_store_name(to_graph)
            if not self._as_they_are:
                self._graph.graphs.caller.require_store(to_graph)
        except KgserveError as error:
            faults(STORE, str(error))
        return LinkPut(to_graph, put)

    def _numbered(self, block: bytes) -> Iterator[tuple[int, _Line]]:
        texts = block.removesuffix(b"\n").split(b"\n")
        first = self._lines + 1
        self._answer.lines = self._lines = self._lines + len(texts)
        if (lines := _at_once(block, len(texts))) is not None:
            yield from enumerate(lines, first)
            return
        for number, text in enumerate(texts, first):
            try:
                yield number, self._decoded(text)
            except RecursionError:
                self._note(number, "is nested too deeply")
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                if text.strip():
                    self._note(number, _in_words(error))

    def _decoded(self, text: bytes) -> _Line:
        """A line of ours, or one of the memory server's. Raises msgspec's DecodeError."""
        if not is_memory_line(text):
            return _decoder.decode(text)
        self._names_entities = True
        return memory_line(text)

    def _land(self) -> None:
        future, numbers = self._flying.popleft()
        report = future.result()
        answer = self._answer
        answer.nodes_created += report.nodes_created
        answer.nodes_updated += report.nodes_updated
        answer.nodes_unchanged += report.nodes_unchanged
        answer.edges_created += report.edges_created
        answer.edges_updated += report.edges_updated
        answer.edges_unchanged += report.edges_unchanged
        answer.edges_skipped_count += report.skipped_count
        answer.edges_skipped += _line_errors(report.skipped, numbers, MAX_NOTED - len(answer.edges_skipped))
        answer.error_count += report.rejected_count
        answer.errors += _line_errors(report.rejected, numbers, MAX_NOTED - len(answer.errors))
        answer.sequence = report.sequence
        if report.redirected and len(answer.redirected or ()) < MAX_REDIRECTED:
            answer.redirected = (answer.redirected or {}) | report.redirected

    def _note(self, number: int, message: str) -> None:
        self._answer.error_count += 1
        if len(self._answer.errors) < MAX_NOTED:
            self._answer.errors.append(LineError(line=number, message=message))


def _at_once(block: bytes, count: int) -> list[_Line] | None:
    """The lines of a block in half the time, if each is one object and nothing is wrong with any."""
    if block.count(b"}\n{") + 1 == count:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            lines = _decoder.decode_lines(block)
            return lines if len(lines) == count else None
    return None


def _in_words(error: Exception) -> str:
    text = str(error).replace("`$.", "`")
    # What the decoder says of half a surrogate pair, too.
    return "is not whole JSON: cut short, or half a surrogate pair" if text == "Input data was truncated" else text


def _line_errors(rows: list[LeftOut], numbers: list[int], room: int) -> list[LineError]:
    return [LineError(line=numbers[row.index], message=row.reason) for row in rows[: max(room, 0)]]


def _empty_answer(sequence: int) -> ImportAnswer:
    return ImportAnswer(
        ok=True,
        lines=0,
        nodes_sent=0,
        edges_sent=0,
        nodes_created=0,
        nodes_updated=0,
        nodes_unchanged=0,
        edges_created=0,
        edges_updated=0,
        edges_unchanged=0,
        edges_skipped=[],
        edges_skipped_count=0,
        errors=[],
        error_count=0,
        sequence=sequence,
    )
