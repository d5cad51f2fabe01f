"""Reading what an engine holds: its state, and all rows to Parquet files, in a page cache of any size.

The engine gathers 131,072 rows in its page cache before it writes any of them. So nodes are written in slices by their
sequence, each about an eighth of the cache, and put together afterwards. The engine leaves out groups of rows whose
sequences are none of a slice's, and files are filled in about that order: each group is read a few times at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import LiteralString, cast

from kgserve.allocator import give_back
from kgserve.arrow import pq
from kgserve.model.change import StoreState
from kgserve.model.digest import from_text
from kgserve.worker import projection
from kgserve.worker.copying import copy
from kgserve.worker.session import Session

# Otherwise whole columns of a row group are read at once.
_READ_BYTES = 1 << 20
_BLOCK_ROWS = 2_000
_ROW_BYTES = 128
_STEPS = 4096
_NODES = projection.nodes("MATCH (e:Entity) RETURN")
_EDGES = projection.edges("MATCH (x:Entity)-[k:RELATES_TO]->(y:Entity) RETURN x.id, y.id,")
_WITHOUT = "MATCH (e:Entity) WHERE e.sequence IS NULL RETURN 1 LIMIT 1"
_LAST = "MATCH (e:Entity) RETURN max(e.sequence)"
_STATE = """
MATCH (c:StoreCommit) RETURN c.sequence, c.time, c.digest, c.nodes, c.edges ORDER BY c.sequence DESC LIMIT 1
"""
_SIZES = """
MATCH (e:Entity) WHERE e.sequence IS NOT NULL
WITH e.sequence / $step AS part, count(*) AS many, sum(size(e.content) + size(e.attributes)) AS bytes
RETURN part, many, bytes ORDER BY part
"""


def state(session: Session) -> StoreState:
    """The state of the last commit in the engine. Looks at every commit since the file was made."""
    rows = session.rows(_STATE)
    if not rows:
        return StoreState()
    sequence, time, digest, nodes, edges = rows[0]
    return StoreState(sequence, time, from_text(digest), nodes, edges)


def dump(session: Session, folder: Path) -> StoreState:
    """Write all rows to nodes.parquet and edges.parquet in a folder, from one snapshot; the state they are of."""
    session.run("BEGIN TRANSACTION READ ONLY")
    found = state(session)
    write_nodes(session, folder)
    write_edges(session, folder)
    session.run("COMMIT")
    return found


def write_edges(session: Session, folder: Path) -> None:
    """Write all edges to edges.parquet, within the transaction of the caller if there is one."""
    session.run(copy(f"COPY ({_EDGES.text(session)})", folder / "edges.parquet"))


def write_nodes(session: Session, folder: Path) -> None:
    """As `write_edges`, of all nodes."""
    target = folder / "nodes.parquet"
    bounds = _bounds(session)
    if not bounds:
        session.run(copy(f"COPY ({_NODES.text(session)})", target))
        return
    conditions = list(_slices(session, bounds))
    parts = [folder / f"nodes.{number}.parquet" for number in range(len(conditions))]
    for condition, part in zip(conditions, parts, strict=True):
        some = _NODES.text(session).replace("RETURN", f"WHERE {condition} RETURN", 1)
        session.run(copy(f"COPY ({some})", part))
    _join(parts, target)


def _slices(session: Session, bounds: Iterable[int]) -> Iterator[LiteralString]:
    """The conditions of the slices: each node fits one, whatever its sequence; a statement on a copy may leave it out.

    COPY takes no parameters either; what stands in the text are numbers.
    """
    above = "TRUE"
    for bound in bounds:
        yield cast("LiteralString", f"{above} AND e.sequence < {bound:d}")
        above = f"e.sequence >= {bound:d}"
    yield cast("LiteralString", above)
    if session.rows(_WITHOUT):
        yield "e.sequence IS NULL"


def _bounds(session: Session) -> list[int]:
    """The sequences at which one slice ends and the next begins."""
    step = max(session.rows(_LAST)[0][0] or 0, 0) // _STEPS + 1
    bounds: list[int] = []
    size = 0
    for part, many, texts in session.rows(_SIZES, {"step": step}):
        more = int(texts or 0) + _ROW_BYTES * many
        if size and size + more > session.slice_bytes:
            bounds.append(part * step)
            size = 0
        size += more
    return bounds


def _join(parts: list[Path], target: Path) -> None:
    """Put files of rows together, and remove them."""
    with pq.ParquetWriter(target, pq.read_schema(parts[0])) as writer:
        for part in parts:
            with pq.ParquetFile(part, pre_buffer=False, buffer_size=_READ_BYTES) as parquet:
                for batch in parquet.iter_batches(_BLOCK_ROWS):
                    writer.write_batch(batch)
            part.unlink()
    give_back()
