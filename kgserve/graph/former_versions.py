"""Ids and order of the former versions of a node, which are nodes of their own: `ID@SEQUENCE`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kgserve.storage.model.node_edge_rows import NodeRow

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
