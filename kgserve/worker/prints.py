"""Which rows of a file a statement has changed, from two looks at it: one as it was before, one as it is.

A look is some numbers for each row, not the row: its place in the table, which it keeps for life, its version, and of
the columns that may differ a hash of 64 bits for texts and lists, the value itself for all others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, LiteralString

import msgspec
import numpy as np

from kgserve.arrow import pa, pc
from kgserve.model.fields import EDGE, ENDS, NODE, TEXT, TEXTS, WHOLES, Field
from kgserve.worker import projection
from kgserve.worker.projection import Query
from kgserve.worker.session import Session


class Kind(msgspec.Struct, frozen=True):
    """How rows of a table are looked at: prints of all, rows by their places, rows that have no version yet."""

    look: LiteralString
    columns: Mapping[str, LiteralString]
    at: Query
    new: Query


def _columns(row: LiteralString, fields: tuple[Field, ...]) -> dict[str, LiteralString]:
    return {field.name: _look(f"{row}.{field.name}", field) for field in fields if field.name != "version"}


def _look(value: LiteralString, field: Field) -> LiteralString:
    if field.type in {TEXTS, WHOLES}:
        # The hash of an empty list is that of null.
        return f"hash({value}), size({value})"
    return f"hash({value})" if field.type is TEXT else value


NODES = Kind(
    "MATCH (e:Entity) RETURN offset(id(e)), e.version",
    _columns("e", NODE.whole[1:]),
    projection.nodes("MATCH (e:Entity) WHERE offset(id(e)) IN $offsets RETURN"),
    projection.nodes("MATCH (e:Entity) WHERE e.version IS NULL RETURN"),
)
EDGES = Kind(
    "MATCH (x:Entity)-[k:RELATES_TO]->(y:Entity) RETURN offset(id(k)), k.version",
    _columns("k", EDGE.whole[ENDS:]),
    projection.edges("MATCH (x:Entity)-[k:RELATES_TO]->(y:Entity) WHERE offset(id(k)) IN $offsets RETURN x.id, y.id,"),
    projection.edges("MATCH (x:Entity)-[k:RELATES_TO]->(y:Entity) WHERE k.version IS NULL RETURN x.id, y.id,"),
)
_COUNT = "MATCH (e:Entity) RETURN count(*)"
_BACKWARDS = "MATCH (x:Entity)<-[k:RELATES_TO]-(y:Entity) RETURN offset(id(k))"


class Prints(msgspec.Struct, frozen=True):
    """The prints of all rows in the order of their places."""

    places: np.ndarray[Any, Any]
    table: pa.Table

    @property
    def is_sound(self) -> bool:
        """Whether the engine has met no row twice."""
        return bool((self.places[1:] > self.places[:-1]).all())


class Touched(msgspec.Struct, frozen=True):
    """The places of rows that are other than before or gone, and of those that are other or new."""

    before: list[int]
    now: list[int]


def prints(session: Session, kind: Kind, columns: Collection[str]) -> Prints:
    """A look at the version and at some more columns of all rows."""
    wanted: list[LiteralString] = [kind.look, *(text for name, text in kind.columns.items() if name in columns)]
    query: LiteralString = ", ".join(wanted)
    table = session.arrow(query)
    places = table.column(0).to_numpy()
    order = np.argsort(places, kind="stable")
    return Prints(places[order], table.take(pa.array(order)).remove_column(0))


def touched(before: Prints, now: Prints) -> Touched:
    """Where two looks at the same columns differ."""
    stays, stayed = np.isin(before.places, now.places), np.isin(now.places, before.places)
    was, is_now = before.table.filter(pa.array(stays)), now.table.filter(pa.array(stayed))
    other = np.zeros(was.num_rows, np.bool_)
    for one, two in zip(was.columns, is_now.columns, strict=True):
        other |= differs(one, two).to_numpy().astype(np.bool_)
    changed = before.places[stays][other]
    return Touched(
        np.concatenate((before.places[~stays], changed)).tolist(),
        np.concatenate((now.places[~stayed], changed)).tolist(),
    )


def differs(one: pa.ChunkedArray, other: pa.ChunkedArray) -> pa.ChunkedArray:
    """Where two columns differ; null is a value like others, and a number that is none differs from itself."""
    one_missing = pc.xor(pc.is_null(one), pc.is_null(other))
    return pc.or_(one_missing, pc.fill_null(pc.not_equal(one, other), fill_value=False))


def node_count(session: Session) -> int:
    """How many nodes there are."""
    return session.rows(_COUNT)[0][0]


def rows_at(session: Session, kind: Kind, places: Sequence[int]) -> pa.Table:
    """The rows at some places, at least one, with all their columns. Takes longer the more they are."""
    return session.arrow(kind.at.text(session), {"offsets": places})


def rows_without_version(session: Session, kind: Kind) -> pa.Table:
    """The rows that a statement has made and given no version."""
    return session.arrow(kind.new.text(session))


def agree(session: Session, edges: Prints) -> bool:
    """Whether the engine meets the same edges from their targets as from their sources: a DETACH may leave some."""
    backwards = np.sort(session.arrow(_BACKWARDS).column(0).to_numpy())
    return np.array_equal(backwards, edges.places)
