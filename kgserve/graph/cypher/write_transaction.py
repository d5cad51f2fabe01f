"""Cypher statements that write: their changes, and optimistic execution concurrently with other writes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import wait
from contextlib import ExitStack, suppress
from functools import cached_property, partial
from typing import Any

import msgspec

from kgserve.cypher.code_fences import blank_code_fences
from kgserve.cypher.guard import GuardedStatement, guard_statement
from kgserve.cypher.write_analysis import (
    SETTABLE_PROPERTIES,
    FinalWrite,
    PropertyAssignment,
    ReadFootprint,
    ReturnedColumn,
    WrittenElement,
    analyze_write_scope,
    can_match_any,
    extract_final_write,
)
from kgserve.errors import Gone, InvalidInput, TooLarge
from kgserve.graph.answers import CypherAnswer, CypherChanges
from kgserve.graph.cypher.read_statements import (
    DEFAULT_RESULT_ROWS,
    MAX_RESULT_BYTES,
    StatementCancellation,
    collect_answer,
    open_result,
    required_columns,
    retry_after_crash,
    time_limit_seconds,
)
from kgserve.graph.mutations import estimate_bytes
from kgserve.graph.request_bodies import CypherRequest, EdgeInput, NodeInput
from kgserve.graph.request_validation import FaultCallback, to_edge_put, to_node_put
from kgserve.graph.store_handle import StoreHandle
from kgserve.platform.codecs import decode_json
from kgserve.platform.timestamps import is_representable_time
from kgserve.projections.cypher_engine.engine.engine import StatementCursor
from kgserve.projections.cypher_engine.engine.protocol import ChangedRow, RowChanges
from kgserve.storage.journal.tail import JournalTail
from kgserve.storage.model.batch import EdgePut, NodePut, WriteBatch
from kgserve.storage.model.change import ChangeSet
from kgserve.storage.model.fields import (
    EDGE,
    MAX_ORDINAL,
    MAX_TAGS,
    NODE,
    STRING_LIST_TYPE,
    STRING_TYPE,
    TIMESTAMP_TYPE,
    EdgeExtrasPut,
    NodeExtrasPut,
    NumberPut,
    RowFields,
    TimestampPut,
)
from kgserve.storage.model.rows import (
    EDGE_EXTRA_NAMES,
    NODE_EXTRA_NAMES,
    EdgeKey,
    EdgeRow,
    NodeRow,
    edge_column_values,
    node_column_values,
)
from kgserve.storage.plan import WriteReport
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.stores.bulk_delete import BulkDelete, is_bulk_delete
from kgserve.stores.open_store import OpenStore
from kgserve.stores.scratch_database import ScratchStatement
from kgserve.stores.writer import PlannedWrite

MAX_CHANGED_ROWS = 200_000
_MANAGED_MEMORY_FIELDS = tuple(field.name for field in NODE.memory if field.is_kept)
_MANAGED_NODE_FIELDS = ("version", "sequence", "created_at", "updated_at", "conflicts", *_MANAGED_MEMORY_FIELDS)
_MANAGED_EDGE_FIELDS = ("version", "sequence")


def to_write_batch(difference: RowChanges) -> WriteBatch:
    """Return the equivalent batch. Raises InvalidInput for rows that no store accepts, TooLarge for too many."""
    count = sum(map(len, (difference.nodes, difference.edges, difference.nodes_gone, difference.edges_gone)))
    if count > MAX_CHANGED_ROWS:
        raise TooLarge(f"the statement changes {count} rows; the limit is {MAX_CHANGED_ROWS}, so split it")
    if difference.doubled:
        source, target, relation_type = difference.doubled[0]
        raise statement_error(
            f"it creates a second edge from {source!r} to {target!r} of type {relation_type!r};"
            " only one edge per source, target and type is allowed: use MERGE"
        )
    nodes = [_node(index, row) for index, row in enumerate(difference.nodes)]
    edges = [_edge(index, row) for index, row in enumerate(difference.edges)]
    return WriteBatch(
        nodes=nodes,
        edges=edges,
        delete_nodes=difference.nodes_gone,
        delete_edges=difference.edges_gone,
        cost=estimate_bytes(nodes, edges),
    )


def _node(index: int, row: ChangedRow) -> NodePut:
    name = f"node {row.now['id']!r}"
    _check_managed(row, _MANAGED_NODE_FIELDS, name)
    node_type = _changed_value(row, "type", "")
    if node_type == "" or (row.before is None and node_type is None):
        raise statement_error(f"{name} has no type; every node needs one")
    node = NodeInput(
        id=row.now["id"],
        type=node_type,
        content=_changed_value(row, "content", ""),
        attributes=_parse_attributes(_changed_value(row, "attributes", "{}"), name),
    )
    put = to_node_put(index, node, _fault_raiser(name))
    return msgspec.structs.replace(put, extras=_node_extras(row, name))


def _edge(index: int, row: ChangedRow) -> EdgePut:
    source, target, relation_type = row.now["source"], row.now["target"], row.now["relation_type"]
    name = f"the edge from {source!r} to {target!r}"
    if not relation_type:
        raise statement_error(f"{name} has no relation_type; every edge needs one")
    if row.before is None and row.now["version"] is not None:
        raise statement_error(
            f"{name} is new and has a version, which kgserve manages;"
            " to give an edge another relation_type, delete it and create another"
        )
    _check_managed(row, _MANAGED_EDGE_FIELDS, name)
    weight = _changed_value(row, "weight", 1.0)
    if weight is not None and not math.isfinite(weight):
        raise statement_error(f"{name}: weight must be a finite number")
    attributes = _parse_attributes(_changed_value(row, "attributes", "{}"), name)
    edge = EdgeInput(source=source, target=target, relation_type=relation_type, weight=weight, attributes=attributes)
    put = to_edge_put(index, edge, _fault_raiser(name))
    return msgspec.structs.replace(put, extras=_edge_extras(row, name))


def _node_extras(row: ChangedRow, name: str) -> NodeExtrasPut | None:
    if all(_is_unchanged(row, field) for field in NODE_EXTRA_NAMES):
        return None
    _check_author(row, name)
    checked = NodeInput(id="-", **_texts(row, NODE, name))
    put = to_node_put(0, checked, _fault_raiser(name)).extras or NodeExtrasPut()
    return msgspec.structs.replace(put, **_moments(row, NODE, name), **_numbers(row, NODE, name))


def _edge_extras(row: ChangedRow, name: str) -> EdgeExtrasPut | None:
    if all(_is_unchanged(row, field) for field in EDGE_EXTRA_NAMES):
        return None
    _check_author(row, name)
    ordinal = row.now["ordinal"]
    if ordinal is None and row.before is not None and row.before["ordinal"] is not None:
        raise statement_error(f"{name}: ordinal cannot be removed; delete the edge and create it again")
    if ordinal is not None and abs(ordinal) > MAX_ORDINAL:
        raise statement_error(f"{name}: ordinal is outside -{MAX_ORDINAL} to {MAX_ORDINAL}")
    checked = EdgeInput(source="-", target="-", relation_type="-", **_texts(row, EDGE, name))
    put = to_edge_put(0, checked, _fault_raiser(name)).extras or EdgeExtrasPut()
    return msgspec.structs.replace(put, ordinal=ordinal, **_moments(row, EDGE, name), **_numbers(row, EDGE, name))


def _texts(row: ChangedRow, fields: RowFields, name: str) -> dict[str, Any]:
    """Return the optional texts and tags that the statement set."""
    sent = [field for field in fields.optional if not field.is_kept]
    texts = {field.name: _changed_value(row, field.name, "") for field in sent if field.type is STRING_TYPE}
    lists = (field.name for field in sent if field.type is STRING_LIST_TYPE)
    return texts | {field: _tags(_changed_value(row, field, "[]"), name) for field in lists}


def _moments(row: ChangedRow, fields: RowFields, name: str) -> dict[str, TimestampPut]:
    times = (field.name for field in fields.optional if field.type is TIMESTAMP_TYPE and not field.is_kept)
    return {field: _moment(row, field, name) for field in times}


_MAX_MEMORY_VALUES = {"confidence": 1.0, "importance": 1.0, "layer": 3}
"""Upper bounds of the numbers of memories; the lower bound is 0."""


def _numbers(row: ChangedRow, fields: RowFields, name: str) -> dict[str, NumberPut]:
    found: dict[str, NumberPut] = {}
    for field in (field.name for field in fields.memory if field.name in _MAX_MEMORY_VALUES):
        if not _is_unchanged(row, field):
            value = found[field] = row.now[field]
            if value is not None and not 0 <= value <= _MAX_MEMORY_VALUES[field]:
                raise statement_error(f"{name}: {field} is outside 0 to {_MAX_MEMORY_VALUES[field]}")
    return found


def _check_author(row: ChangedRow, name: str) -> None:
    if row.before is not None and all(_is_unchanged(row, field) for field in row.now if field != "created_by"):
        raise statement_error(
            f"{name}: created_by is the author of a state and cannot be set alone; change another field, too"
        )


def _is_unchanged(row: ChangedRow, field: str) -> bool:
    return row.now[field] == (row.before[field] if row.before else None)


def _tags(text: str | None, name: str) -> list[str] | None:
    tags = None if text is None else decode_json(text, list[str | None])
    if tags is None:
        return None
    found = [tag for tag in tags if tag is not None]
    if len(found) != len(tags) or len(found) > MAX_TAGS:
        raise statement_error(f"{name}: tags must be at most {MAX_TAGS} strings without null")
    return found


def _moment(row: ChangedRow, field: str, name: str) -> TimestampPut:
    now = row.now[field]
    if row.before is not None and now == row.before[field]:
        return msgspec.UNSET
    if now is not None and not is_representable_time(now):
        raise statement_error(f"{name}: {field} is outside the years 1 to 9999")
    return now


def _changed_value(row: ChangedRow, field: str, empty: Any) -> Any:
    """Return the value that the statement gave a field, ``empty`` for null; None if unchanged."""
    now = row.now[field]
    if row.before is None:
        return now
    return None if now == row.before[field] else (empty if now is None else now)


def _check_managed(row: ChangedRow, fields: tuple[str, ...], name: str) -> None:
    if all(row.now[field] is None for field in fields):
        return  # new, or deleted and created again
    for field in fields:
        if row.now[field] != (row.before[field] if row.before else None):
            raise statement_error(f"{name}: {field} is managed by kgserve and cannot be set")


def _parse_attributes(text: str | None, name: str) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        return decode_json(text, dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        raise statement_error(f"{name}: attributes must be the text of a JSON object") from None


def _fault_raiser(name: str) -> FaultCallback:
    def raise_it(path: str, message: str) -> None:
        raise statement_error(f"{name}: {path} {message}")

    return raise_it


def statement_error(message: str) -> InvalidInput:
    """Return the error for a change that is not allowed."""
    return InvalidInput.at("query", message)


MAX_MATCHED_ROWS = 1_000_000
_INTEGER_TYPES = {f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)}
_ASSIGNABLE_TYPES = {"STRING": {"STRING"}, "DOUBLE": {"DOUBLE"} | _INTEGER_TYPES}
"""Value types that a column accepts, as in the engine."""

_NODE_CHANGE_FIELDS = (*NodeRow.__struct_fields__[:-1], *NODE_EXTRA_NAMES)
_EDGE_CHANGE_FIELDS = (*EdgeRow.__struct_fields__[:-1], *EDGE_EXTRA_NAMES)
_Key = str | EdgeKey


class UnsupportedEndingError(Exception):
    """The statement cannot be reduced to a query; it must run on a copy of the store."""


class StaleRowsError(Exception):
    """The query was answered from newer rows than the given ones."""


def apply_ending(
    ending: FinalWrite, cursor: StatementCursor, rows: RowsSnapshot, most: int
) -> tuple[RowChanges, CypherAnswer]:
    """Return the changes of a statement, computed from the result of its query, and at most ``most`` returned rows.

    Raises InvalidInput, UnsupportedEnding and StaleRows.
    """
    _check_types(ending, cursor)
    returned = list[list[Any]]()
    answers = _result_rows(cursor, ending, returned, most if ending.returned else 0)
    found = (
        _assignment_difference(ending, answers, rows)
        if ending.assignments
        else _deletion_difference(ending, answers, rows)
    )
    answer = CypherAnswer(
        columns=[each.name for each in ending.returned],
        types=[cursor.types[each.column] for each in ending.returned],
        rows=returned,
        row_count=len(returned),
        truncated=bool(ending.returned) and cursor.total > len(returned),
        took_ms=0.0,
    )
    return found, answer


def _check_types(ending: FinalWrite, cursor: StatementCursor) -> None:
    due = {each.column + at: kind for each in ending.elements for at, kind in enumerate(each.types)}
    values = {each.column: _ASSIGNABLE_TYPES[SETTABLE_PROPERTIES[each.property]] for each in ending.assignments}
    wrong = any(cursor.types[column] != kind for column, kind in due.items())
    if wrong or cursor.total > MAX_MATCHED_ROWS or any(cursor.types[at] not in kinds for at, kinds in values.items()):
        raise UnsupportedEndingError


def _result_rows(
    cursor: StatementCursor, ending: FinalWrite, returned: list[list[Any]], most: int
) -> Iterator[list[Any]]:
    """Yield the result rows; the first ones are also appended to ``returned``."""
    size = 0
    for line in cursor.lines():
        answer = decode_json(line, list[Any])
        if len(returned) < most:
            size += len(line)
            if size >= MAX_RESULT_BYTES:
                raise UnsupportedEndingError
            returned.append([_with_assignments(each, ending, answer) for each in ending.returned])
        yield answer


def _with_assignments(returned: ReturnedColumn, ending: FinalWrite, answer: list[Any]) -> Any:
    value = answer[returned.column]
    if returned.element is None or value is None:
        return value
    given = (each for each in ending.assignments if each.element == returned.element)
    return value | {each.property: answer[each.column] for each in given if each.property in value}


def _key(element: WrittenElement, answer: list[Any]) -> _Key | None:
    found = answer[element.column]
    if found is None or element.is_node:
        return found
    if len(element.told) > 1:
        source, target, relation_type = answer[element.column : element.column + len(element.told)]
        # The ends may be set although OPTIONAL MATCH found no edge.
        return (source, target, relation_type) if relation_type is not None else None
    return found["_from"], found["_to"], found["relation_type"]


def _deletion_difference(ending: FinalWrite, answers: Iterable[list[Any]], rows: RowsSnapshot) -> RowChanges:
    nodes, edges = dict[str, None](), dict[EdgeKey, None]()
    for answer in answers:
        for element in ending.elements:
            key = _key(element, answer)
            if isinstance(key, str):
                nodes[key] = None
            elif key is not None:
                edges[key] = None
    if not ending.detach:
        _check_no_edges_left(nodes, edges, rows)
    return RowChanges(nodes=[], edges=[], nodes_gone=[*nodes], edges_gone=[*edges], doubled=[])


def _check_no_edges_left(nodes: Iterable[str], edges: dict[EdgeKey, None], rows: RowsSnapshot) -> None:
    """Raise InvalidInput for a node that would leave an edge without an end."""
    for node_id in nodes:
        for found in (rows.outgoing(node_id), rows.incoming(node_id)):
            left = next((row for row in found if row.key not in edges), None)
            if left is not None:
                raise statement_error(
                    f"node {node_id!r} has connected edges, such as {left.relation_type!r} from {left.source!r} to"
                    f" {left.target!r}: delete them first, or use DETACH DELETE"
                )


def _assignment_difference(ending: FinalWrite, answers: Iterable[list[Any]], rows: RowsSnapshot) -> RowChanges:
    given: dict[WrittenElement, dict[_Key, dict[str, Any]]] = {element: {} for element in ending.elements}
    for answer in answers:
        for assignment in ending.assignments:
            key = _key(assignment.element, answer)
            if key is not None:
                value = _assigned_value(assignment, answer)
                # The engine uses an unspecified one of several rows for the same element.
                if given[assignment.element].setdefault(key, {}).setdefault(assignment.property, value) != value:
                    raise UnsupportedEndingError
    nodes, edges = dict[str, dict[str, Any]](), dict[EdgeKey, dict[str, Any]]()
    for values in given.values():
        for key, properties in values.items():
            found = nodes.setdefault(key, {}) if isinstance(key, str) else edges.setdefault(key, {})
            if found:  # the same row by two names
                raise UnsupportedEndingError
            found.update(properties)
    return RowChanges(
        nodes=[*_changed_nodes(nodes, rows)],
        edges=[*_changed_edges(edges, rows)],
        nodes_gone=[],
        edges_gone=[],
        doubled=[],
    )


def _assigned_value(assignment: PropertyAssignment, answer: list[Any]) -> str | float | None:
    value = answer[assignment.column]
    if value is None or SETTABLE_PROPERTIES[assignment.property] == "STRING":
        return value
    if isinstance(value, str):  # not finite
        raise UnsupportedEndingError
    return float(value)


def _changed_nodes(given: dict[str, dict[str, Any]], rows: RowsSnapshot) -> Iterator[ChangedRow]:
    found = rows.nodes(given)
    if len(found) < len(given):
        raise StaleRowsError
    for node_id, properties in given.items():
        before = dict(
            zip(_NODE_CHANGE_FIELDS, node_column_values(msgspec.structs.astuple(found[node_id])), strict=True)
        )
        yield ChangedRow(before | properties, before)


def _changed_edges(given: dict[EdgeKey, dict[str, Any]], rows: RowsSnapshot) -> Iterator[ChangedRow]:
    found = rows.edges([*given])
    if len(found) < len(given):
        raise StaleRowsError
    for key, properties in given.items():
        before = dict(zip(_EDGE_CHANGE_FIELDS, edge_column_values(msgspec.structs.astuple(found[key])), strict=True))
        yield ChangedRow(before | properties, before)


MAX_CONCURRENT_ATTEMPTS = 3
"""Attempts to run a statement concurrently with other writes before it runs exclusively."""
WRITE_INTERRUPT_POLL_SECONDS = 0.05
MAX_RERUN_SECONDS = 0.2
"""Faster statements are run again in the writer's thread after a conflict."""
MAX_REQUERY_SECONDS = 0.5
"""Faster deletions are queried again to check that the same rows would be deleted."""
MAX_COMMITS_CHECKED = 20_000
"""Concurrent commits checked for conflicts."""


class WriteConflict(Exception):
    """Another write has changed rows that the statement may have read."""


class _StatementOutcome(msgspec.Struct, frozen=True):
    """Changes and answer of a statement as of a commit, and the seconds it took.

    ``batch`` is None for the deletion of a large number of rows.
    """

    batch: WriteBatch | None
    difference: RowChanges
    answer: CypherAnswer
    sequence: int
    seconds: float

    def deletes_same_rows(self, other: _StatementOutcome) -> bool:
        """Return whether the same rows are deleted."""
        return set(self.difference.nodes_gone) == set(other.difference.nodes_gone) and set(
            self.difference.edges_gone
        ) == set(other.difference.edges_gone)


_Prepared = tuple[_StatementOutcome, WriteBatch | PlannedWrite]


class OptimisticWrite:
    """A writing statement, executed with optimistic concurrency on a leased store.

    It runs against the current rows while other writes proceed. In the writer's thread its outcome is revalidated: it
    is committed unless another write has changed rows that the statement may have read. After several conflicts it runs
    with the writer stopped.
    """

    def __init__(
        self,
        store: OpenStore,
        statement: GuardedStatement,
        max_rows: int,
        seconds: float,
        control: StatementCancellation,
    ) -> None:
        """Answer with at most `max_rows` rows, and take at most `seconds`."""
        self._store = store
        self._statement = statement
        self._max_rows = max_rows
        self._seconds = seconds
        self._control = control
        self._ending = extract_final_write(statement)

    @cached_property
    def _footprint(self) -> ReadFootprint:
        """The rows that the statement may read; computed only after concurrent writes."""
        return ReadFootprint(self._statement)

    def run(self) -> CypherAnswer:
        """Execute the statement and wait for its commit. Blocks."""
        if self._ending is not None:
            # Errors are reported by the engine when it runs the statement on a copy.
            with suppress(UnsupportedEndingError, InvalidInput):
                return self._commit()
            self._ending = None
        with self._store.copy.exclusive_use(self._control.check):
            return self._commit()

    def _commit(self) -> CypherAnswer:
        for _ in range(MAX_CONCURRENT_ATTEMPTS):
            with suppress(WriteConflict):
                return self.try_commit()
        return self.commit_exclusively()

    def try_commit(self) -> CypherAnswer:
        """Run the statement concurrently with other writes, and commit it. Raises WriteConflict."""
        with self._store.reading() as rows, ExitStack() as held:
            outcome = self._execute(rows)
            if outcome.batch is not None:
                return self._submit(partial(self.revalidate, outcome, outcome.batch, rows))
            removal = self._plan_removal(outcome, rows, held)
            return self._submit(partial(self._revalidate_removal, outcome, removal, rows))

    def commit_exclusively(self) -> CypherAnswer:
        """Run and commit the statement in the writer's thread, so that no other write intervenes."""
        # `reading` rebuilds rows that are found to be damaged.
        with self._store.reading(), self._store.folding.stage_deletion(self._control.check) as staged:

            def execute() -> _Prepared:
                staged.restart()
                outcome = self._execute(staged.rows)
                if outcome.batch is not None:
                    return outcome, outcome.batch
                return outcome, BulkDelete(staged, outcome.difference.nodes_gone, outcome.difference.edges_gone)

            return self._submit(execute)

    def _submit(self, prepare: Callable[[], _Prepared]) -> CypherAnswer:
        """Commit what `prepare` returns in the writer's thread."""
        answers: list[CypherAnswer] = []

        def prepared() -> WriteBatch | PlannedWrite:
            self._control.check()
            outcome, write = prepare()
            answers.append(outcome.answer)
            return write

        writing = self._store.submit_prepared(prepared)
        try:
            report = writing.result()
        except KeyboardInterrupt:
            # The statement would continue in the writer's thread, and the engine ignores interrupts while it plans.
            while not wait([writing], WRITE_INTERRUPT_POLL_SECONDS).done:
                self._control.interrupt()
            raise
        return msgspec.structs.replace(answers[0], changes=_changes(report))

    def revalidate(self, outcome: _StatementOutcome, batch: WriteBatch, rows: RowsSnapshot) -> _Prepared:
        """Return the outcome if it still holds, else a new one if the statement is fast. Raises WriteConflict."""
        since = self._commits_after(outcome.sequence)
        if not since or not (has_write_overlap(batch, since) or self._may_have_read(since, rows)):
            return outcome, batch
        again = self._execute_again() if outcome.seconds < MAX_RERUN_SECONDS else None
        if again is None or again.batch is None:
            raise WriteConflict
        return again, again.batch

    def _plan_removal(self, outcome: _StatementOutcome, rows: RowsSnapshot, held: ExitStack) -> BulkDelete:
        """Plan a large deletion concurrently with other writes. Raises WriteConflict."""
        staged = held.enter_context(self._store.folding.stage_deletion(self._control.check))
        gone = outcome.difference
        since = self._commits_after(outcome.sequence, staged.rows.at)
        if since and (self._may_have_read(since, rows) or self._blocks_deletion(since, gone)):
            self._require_same_rows(outcome)
        removal = BulkDelete(staged, gone.nodes_gone, gone.edges_gone)
        # Checks most concurrent commits here, to keep the writer's thread free.
        self._revalidate_removal(outcome, removal, rows)
        return removal

    def _revalidate_removal(self, outcome: _StatementOutcome, removal: BulkDelete, rows: RowsSnapshot) -> _Prepared:
        """Return the outcome with its removal if it still holds. Raises WriteConflict."""
        since = removal.unconflicting_changes()
        if since is None:
            raise WriteConflict
        if self._may_have_read(since, rows):
            self._require_same_rows(outcome)
        return outcome, removal

    def _require_same_rows(self, outcome: _StatementOutcome) -> None:
        """Raise WriteConflict unless a quick query finds that the same rows would be deleted now."""
        if self._ending is None or outcome.seconds > MAX_REQUERY_SECONDS:
            raise WriteConflict
        if not self._execute_again().deletes_same_rows(outcome):
            raise WriteConflict

    def _commits_after(self, sequence: int, last: int | None = None) -> list[ChangeSet]:
        """Return the commits of other writers after a commit. Raises WriteConflict for too many."""
        last = self._store.state.sequence if last is None else last
        if last == sequence:
            return []
        if last - sequence > MAX_COMMITS_CHECKED:
            raise WriteConflict
        try:
            return [*JournalTail(self._store.layout.journal).read(sequence + 1, last)]
        except Gone:
            # The journal no longer has what was committed while this statement ran.
            raise WriteConflict from None

    def _may_have_read(self, since: list[ChangeSet], rows: RowsSnapshot) -> bool:
        """Return whether the statement could have read rows that other commits changed."""
        new = [row for change in since for row in change.nodes_created]
        changed = [row for change in since for row in (*change.nodes_updated, *change.nodes_deleted)]
        edges = [key for change in since for key in change.edge_keys()]
        return can_match_any(self._footprint, rows.node, new, changed, edges)

    def _blocks_deletion(self, since: list[ChangeSet], gone: RowChanges) -> bool:
        """Return whether another commit added an edge to a node that can be deleted only without edges."""
        if self._ending is not None and self._ending.detach:
            return False
        nodes = set(gone.nodes_gone)
        return any(key[0] in nodes or key[1] in nodes for change in since for key in change.edge_keys())

    def _execute_again(self) -> _StatementOutcome:
        with self._store.reading() as rows:
            return self._execute(rows)

    def _execute(self, rows: RowsSnapshot) -> _StatementOutcome:
        """Return the changes and the answer of the statement; `rows` are not newer than what it reads."""
        started = time.perf_counter()
        while True:
            self._control.check()
            with suppress(StaleRowsError):
                found, answer = self._run_on_copy() if self._ending is None else self._query(self._ending)
                only_deletes = not (found.nodes or found.edges or found.doubled)
                large = only_deletes and is_bulk_delete(rows, found.nodes_gone, found.edges_gone)
                batch = None if large else to_write_batch(found)
                return _StatementOutcome(batch, found, answer, rows.at, time.perf_counter() - started)

    def _query(self, end: FinalWrite) -> tuple[RowChanges, CypherAnswer]:
        """Return the changes, computed by the query that precedes the statement's ending."""
        question, width = end.question, required_columns(self._statement)

        def query() -> tuple[RowChanges, CypherAnswer]:
            with (
                self._store.reading() as rows,
                self._store.engine.reading(self._seconds, width=width) as session,
                self._control.over(session),
                session.reading(question) as cursor,
            ):
                return apply_ending(end, cursor, rows, self._max_rows)

        return retry_after_crash(query)

    def _run_on_copy(self) -> tuple[RowChanges, CypherAnswer]:
        """Return the changes, computed by running the statement on a copy of the store."""
        within = analyze_write_scope(self._statement)

        def attempt(trial: ScratchStatement) -> tuple[RowChanges, CypherAnswer]:
            self._control.check()
            session = trial.session
            session.seconds = self._seconds
            with self._control.over(session), session.reading(self._statement, self._max_rows, writes=True) as cursor:
                answer = collect_answer(cursor)
            return trial.difference(within), answer

        return self._store.copy.run(attempt, within)


def run_cypher_request(
    graph: StoreHandle, request: CypherRequest, control: StatementCancellation | None = None
) -> CypherAnswer:
    """Return the rows of a statement and, in write mode, what it changed. Blocks.

    In write mode, the store is created if it does not exist. A failing statement changes nothing.

    Raises InvalidInput with the position in the text, Forbidden for what the mode does not permit, TimedOut, NotFound,
    and StorageFull when the statement needs more memory than is available.
    """
    started = time.perf_counter()
    control = control or StatementCancellation()
    statement = guard_statement(blank_code_fences(request.query), request.params, writable=request.mode == "write")
    most = DEFAULT_RESULT_ROWS if request.max_rows is None else request.max_rows
    seconds = time_limit_seconds(graph, request)
    if statement.updates:
        with graph.lease(create=True) as store:
            answer = OptimisticWrite(store, statement, most, seconds, control).run()
    else:

        def answered() -> CypherAnswer:
            with open_result(graph, statement, seconds, most, control) as cursor:
                return collect_answer(cursor)

        answer = retry_after_crash(answered)
    return msgspec.structs.replace(answer, took_ms=round((time.perf_counter() - started) * 1000, 3))


def has_write_overlap(batch: WriteBatch, since: Iterable[ChangeSet]) -> bool:
    """Return whether other commits wrote rows that a batch writes, or deleted rows that it depends on."""
    gone = set(batch.delete_nodes)
    nodes = gone.union(put.id for put in batch.nodes)
    edges = {*batch.delete_edges, *(put.key for put in batch.edges)}
    ends = {end for key in edges for end in key[:2]}
    return any(each.touches(nodes, edges, gone) or not ends.isdisjoint(each.nodes_deleted) for each in since)


def _changes(report: WriteReport) -> CypherChanges:
    return CypherChanges(
        nodes_created=report.nodes_created,
        nodes_updated=report.nodes_updated,
        nodes_deleted=report.nodes_deleted,
        edges_created=report.edges_created,
        edges_updated=report.edges_updated,
        edges_deleted=report.edges_deleted,
        sequence=report.sequence,
    )
