"""Ids and order of the former versions of a node, which are nodes of their own: `ID@SEQUENCE`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kgserve.errors import Conflict
from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.storage.model.node_edge_fields import NO_EXTRAS
from kgserve.storage.model.node_edge_rows import NodeRow
from kgserve.storage.model.soft_delete import REASON_SUPERSEDED, VERSION_OF_RELATION, is_memory_predecessor
from kgserve.storage.rows.edge_pages import incoming_edges_of_type
from kgserve.storage.rows.rows_snapshot import RowsSnapshot

EARLIEST, LATEST = -(1 << 63), (1 << 63) - 1
"""Start and end, in microseconds, of a validity without one."""

_VERSION_ID = re.compile(r".+@([0-9]{1,19})(?:\.[0-9]+)?", re.DOTALL)


def is_former_version_id(node_id: str) -> bool:
    """Return whether an id has the form of a former version."""
    return _VERSION_ID.fullmatch(node_id) is not None


def parse_version_id_sequence(node_id: str, otherwise: int) -> int:
    """Return the sequence in the id of a version, or ``otherwise``."""
    found = _VERSION_ID.fullmatch(node_id)
    return otherwise if found is None else int(found[1])


def validity_start(row: NodeRow) -> int | None:
    """Return the start of the validity of a node row; None if it has none."""
    return None if row.extras is None else row.extras.valid_from


def validity_end(row: NodeRow) -> int | None:
    """Return the end of the validity of a node row; None if it has none."""
    return None if row.extras is None else row.extras.valid_to


def sort_versions_by_validity_start(versions: Sequence[NodeRow]) -> list[NodeRow]:
    """Sort versions by the start of their validity, those without a start first."""
    return sorted(versions, key=lambda row: ((start := validity_start(row)) is not None, start or 0, row.id))


class ValiditySpan(NamedTuple):
    """Span of valid time in microseconds, without its end."""

    start: int
    end: int

    @property
    def known_start(self) -> int | None:
        """Start, or None if it has none."""
        return None if self.start == EARLIEST else self.start

    @property
    def known_end(self) -> int | None:
        """End, or None if it has none."""
        return None if self.end == LATEST else self.end


def validity_span(row: NodeRow) -> ValiditySpan:
    """Return the validity of a node row."""
    start, end = validity_start(row), validity_end(row)
    return ValiditySpan(EARLIEST if start is None else start, LATEST if end is None else end)


def subtract_validity_spans(span: ValiditySpan, others: Iterable[ValiditySpan]) -> list[ValiditySpan]:
    """Return the parts of a span outside all others, in order."""
    parts: list[ValiditySpan] = []
    start = span.start
    for other in sorted(others):
        if start < other.start < span.end:
            parts.append(ValiditySpan(start, other.start))
        start = max(start, other.end) if other.start < span.end else start
    return [*parts, ValiditySpan(start, span.end)] if start < span.end else parts


def known_statement_start(row: NodeRow) -> int | None:
    """Return when the statement of a version began, if it was interrupted since; None if that is unknown."""
    former = None if row.extras is None else row.extras.former_from
    return validity_start(row) if former is None else former


def statement_start(row: NodeRow) -> int:
    """Return when the statement of a version began, before any version that interrupted it."""
    start = known_statement_start(row)
    return EARLIEST if start is None else start


def list_other_memory_versions(rows: RowsSnapshot, row: NodeRow) -> list[NodeRow]:
    """Return the current and former versions of the memory that a row is a version of, without that version."""
    extras = row.extras or NO_EXTRAS
    head = extras.belongs_to if extras.ended == REASON_SUPERSEDED else row.id
    former = (edge.source for edge in incoming_edges_of_type(rows, head, VERSION_OF_RELATION))
    found = rows.nodes([each for each in (head, *former) if each != row.id])
    return [
        each for each in found.values() if each.id == head or is_memory_predecessor(each, VERSION_OF_RELATION, head, "")
    ]


def check_version_validity_overlap(head: NodeRow, versions: Iterable[NodeRow]) -> None:
    """Raise Conflict when the validity of a version of a memory overlaps that of another one."""
    for version in versions:
        one, other = validity_span(head), validity_span(version)
        what = "former version" if (version.extras or NO_EXTRAS).ended else "memory"
        if max(one.start, other.start) < min(one.end, other.end):
            raise Conflict(
                f"{head.id!r} would be valid {_format_span(one)}; {what} {version.id!r} is valid "
                f"{_format_span(other)}; choose other bounds, or retain the earlier state with valid_from"
            )


def _format_span(span: ValiditySpan) -> str:
    bounds = (("from", span.known_start), ("until", span.known_end))
    return " ".join(f"{word} {format_rfc3339_timestamp(at)}" for word, at in bounds if at is not None) or "at all times"
