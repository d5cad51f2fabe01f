"""Imports lose no record: each is stored, or reported in `errors`, `merged` or `edges_skipped`."""

from __future__ import annotations

import csv
import io
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, cast
from xml.sax.saxutils import quoteattr

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgserve.graph.answers import ImportAnswer
from kgserve.graph.transfer.formats.graphiti_import import read_graphiti
from kgserve.graph.transfer.formats.import_export_files import open_import_source_tables, read_stream_as_import_table
from kgserve.graph.transfer.formats.ndjson_exchange_lines import ImportLinesWithSourceMap, ImportSourceTable
from kgserve.graph.transfer.import_export import StreamingImport, open_store_export_stream
from kgserve.storage.model.store_rows_digest import update_digest_for_row_changes
from kgserve.storage.rows.current_rows import DeltaMergeLimits
from kgserve.storage.rows.row_json_encoder import encode_node_as_unclosed_json
from kgserve.stores.pool import StorePool
from tests.fuzzing import examples
from tests.graphs import graph_of
from tests.stores.writing import settings

IDS = ("a", "b", "c")
ids = st.sampled_from(IDS)
words = st.sampled_from(("x", "y", "z"))


class NodeRecord(NamedTuple):
    """A record of a node; ``is_broken`` ones are unreadable."""

    id: str
    text: str
    is_broken: bool


class EdgeRecord(NamedTuple):
    """A record of an edge."""

    source: str
    target: str
    kind: str


node_records = st.builds(NodeRecord, ids, words, st.sampled_from((False, False, False, True)))
edge_records = st.builds(EdgeRecord, ids, st.sampled_from((*IDS, "missing")), words)
record_lists = st.lists(node_records | edge_records, max_size=12)
Records = list[NodeRecord | EdgeRecord]
Written = Callable[[Records, Path, ExitStack], Iterator[bytes] | list[ImportSourceTable]]


def ndjson(records: Records, _folder: Path, _stack: ExitStack) -> Iterator[bytes]:
    for each in records:
        if isinstance(each, EdgeRecord):
            yield line({"kind": "edge", "from": each.source, "to": each.target, "relation_type": each.kind})
        else:
            kind = 7 if each.is_broken else "t"
            yield line({"kind": "node", "id": each.id, "type": kind, "content": each.text})


def memory_server(records: Records, _folder: Path, _stack: ExitStack) -> Iterator[bytes]:
    for each in records:
        if isinstance(each, EdgeRecord):
            yield line({"type": "relation", "from": each.source, "to": each.target, "relationType": each.kind})
        else:
            observations = [7] if each.is_broken else [each.text]
            yield line({"type": "entity", "name": each.id, "entityType": "t", "observations": observations})


def as_memories(records: Records, folder: Path, stack: ExitStack) -> list[ImportSourceTable]:
    body = b"".join(memory_server(records, folder, stack))
    return [read_stream_as_import_table("memories", io.BytesIO(body), "memory.jsonl")]


def line(values: dict[str, Any]) -> bytes:
    return msgspec.json.encode(values) + b"\n"


def separated(records: Records) -> tuple[list[NodeRecord], list[EdgeRecord]]:
    nodes = [each for each in records if isinstance(each, NodeRecord)]
    return nodes, [each for each in records if isinstance(each, EdgeRecord)]


def csv_pair(records: Records, folder: Path, stack: ExitStack) -> list[ImportSourceTable]:
    nodes, edges = separated(records)
    rows = [[each.id, "t", each.text, "{" if each.is_broken else ""] for each in nodes]
    table(folder / "nodes.csv", ["id", "type", "content", "attributes"], rows)
    table(folder / "edges.csv", ["from", "to", "relation_type"], edges)
    return open_import_source_tables("csv", [folder / "nodes.csv", folder / "edges.csv"], stack)


def table(path: Path, names: list[str], rows: Iterable[Iterable[str]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([names, *rows])


def mapped_csv(records: Records, folder: Path, stack: ExitStack) -> list[ImportSourceTable]:
    nodes, edges = separated(records)
    table(folder / "people.csv", ["nr", "text", "age"], [[n.id, n.text, "?" if n.is_broken else "1"] for n in nodes])
    table(folder / "knows.csv", ["who", "whom", "how"], edges)
    (folder / "map.toml").write_text(
        '[[nodes]]\nfile = "people.csv"\nid = "{nr}"\ntype = "t"\ncontent = "{text}"\nattributes = { age = "int" }\n'
        '[[edges]]\nfile = "knows.csv"\nfrom = "{who}"\nto = "{whom}"\nrelation_type = "{how}"\n'
    )
    return open_import_source_tables("csv", [], stack, folder / "map.toml")


def parquet_pair(records: Records, folder: Path, stack: ExitStack) -> list[ImportSourceTable]:
    nodes, edges = separated(records)
    rows = [{"id": n.id, "type": "t", "content": n.text, "attributes": "{" if n.is_broken else "{}"} for n in nodes]
    links = [{"from": e.source, "to": e.target, "relation_type": e.kind} for e in edges]
    names = (("id", "type", "content", "attributes"), ("from", "to", "relation_type"))
    for name, values, columns in zip(("nodes", "edges"), (rows, links), names, strict=True):
        schema = pa.schema([(column, pa.string()) for column in columns])
        pq.write_table(pa.Table.from_pylist(values, schema), folder / f"{name}.parquet")
    return open_import_source_tables("parquet", [folder / "nodes.parquet", folder / "edges.parquet"], stack)


def graphml(records: Records, _folder: Path, _stack: ExitStack) -> list[ImportSourceTable]:
    parts = ['<graphml><key id="n" for="node" attr.name="n" attr.type="int"/><graph edgedefault="directed">']
    for each in records:
        if isinstance(each, EdgeRecord):
            ends = f"source={quoteattr(each.source)} target={quoteattr(each.target)}"
            parts.append(f'<edge {ends}><data key="label">{each.kind}</data></edge>')
        else:
            number = '<data key="n">x</data>' if each.is_broken else ""
            parts.append(f'<node id={quoteattr(each.id)}><data key="content">{each.text}</data>{number}</node>')
    text = "".join([*parts, "</graph></graphml>"])
    return [read_stream_as_import_table("graphml", io.BytesIO(text.encode()), "x.graphml")]


def kb(records: Records, folder: Path, stack: ExitStack) -> list[ImportSourceTable]:
    nodes, edges = separated(records)
    path = folder / "kb.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE notes (id TEXT, title TEXT, body TEXT, tags TEXT, links TEXT)")
        rows = [(each.id, "", each.text, "{" if each.is_broken else None, None) for each in nodes]
        rows += [(each.source, "", each.kind, "{", msgspec.json.encode([each.target]).decode()) for each in edges]
        connection.executemany("INSERT INTO notes VALUES (?, ?, ?, ?, ?)", rows)
        connection.commit()
    return open_import_source_tables("kb", [path], stack)


def graphiti(records: Records, _folder: Path, _stack: ExitStack) -> list[ImportSourceTable]:
    nodes, edges = separated(records)
    entities = [
        {"uuid": n.id, "name": n.text, "labels": ["t"], "attributes": "{" if n.is_broken else "{}"} for n in nodes
    ]
    links = [{"uuid": str(at), "source": e.source, "target": e.target} for at, e in enumerate(edges)]
    facts = sorted(
        ({"uuid": str(at), "name": e.kind, "source": e.source, "target": e.target} for at, e in enumerate(edges)),
        key=lambda row: (row["source"], row["target"], row["name"]),
    )

    def rows(query: str) -> Iterator[dict[str, Any]]:
        """Yield the engine's answers to the reader's statements."""
        if ":RELATES_TO]" in query:
            return iter(facts)
        if ":MENTIONS]" in query:
            return iter(links)
        return iter(entities if "(n:Entity)" in query else [])

    columns = frozenset({"uuid", "name", "labels", "attributes"})
    tables: dict[str, frozenset[str]] = dict.fromkeys(("Entity", "Episodic", "RelatesToNode_", "MENTIONS"), columns)
    return read_graphiti("x.kuzu", tables, rows)


FORMATS: dict[str, Written] = {
    "ndjson": ndjson,
    "memory-server": memory_server,
    "memories": as_memories,
    "csv": csv_pair,
    "mapping": mapped_csv,
    "parquet": parquet_pair,
    "graphml": graphml,
    "kb": kb,
    "graphiti": graphiti,
}
ADDING = {"memory-server", "memories"}
"""Formats that keep the texts of all records of an id; in others the last record wins."""


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StorePool]:
    with StorePool(settings(tmp_path_factory.mktemp("importers"))) as opened:
        yield opened


def imported(pool: StorePool, store: str, written: Iterator[bytes] | list[ImportSourceTable]) -> ImportAnswer:
    """Return the answer of an import in terms of its file; ``lines`` are the nodes, edges and faults that were read."""
    conversion = ImportLinesWithSourceMap(written) if isinstance(written, list) else None
    blocks = conversion.blocks() if conversion else cast("Iterator[bytes]", written)
    importer = StreamingImport(graph_of(pool, store))
    try:
        importer.feed(b"".join(blocks))
        answer = importer.finish(faults=conversion.fault_count if conversion else 0)
    finally:
        importer.abort()
    return conversion.translate_answer(answer) if conversion else answer


def rows_of(pool: StorePool, store: str) -> list[dict[str, Any]]:
    """Return the rows of a store, except placeholders of missing ends of relations."""
    if store not in pool.names():
        return []
    with open_store_export_stream(graph_of(pool, store)) as stream:
        rows = [msgspec.json.decode(each) for each in b"".join(stream).splitlines()]
    return [row for row in rows if row.get("attributes") != {"placeholder": True}]


@pytest.mark.parametrize("name", FORMATS)
@examples(15)
@given(records=record_lists)
def test_every_record_is_stored_or_reported(
    name: str, pool: StorePool, tmp_path_factory: pytest.TempPathFactory, records: Records
) -> None:
    store = f"store-{next(_numbers)}"
    with ExitStack() as stack:
        answer = imported(pool, store, FORMATS[name](records, tmp_path_factory.mktemp(name), stack))
    rows = rows_of(pool, store)
    assert len(rows) + answer.error_count + answer.edges_skipped_count + answer.merged_count == answer.lines
    assert (store in pool.names()) == (answer.sequence > 0 or not records)
    texts = {row["content"] for row in rows if row["kind"] == "node"}
    for node_id, expected in kept_texts(records).items():
        kept = expected if name in ADDING else expected[-1:]
        assert all(any(text in content.split("\n") for content in texts) for text in kept), node_id
    if store in pool.names():
        pool.drop(store)


_numbers = count()


def kept_texts(records: Records) -> dict[str, list[str]]:
    """Return the readable records' texts by id, in order."""
    found: dict[str, list[str]] = {}
    for each in records:
        if isinstance(each, NodeRecord) and not each.is_broken:
            found.setdefault(each.id, []).append(each.text)
    return found


LABELS = ("a", "b", "é", "~ %", '"\n\\', "\U0010ffff", "c" * 129)
labels = st.sampled_from(LABELS)
VALUES = (
    None,
    {},
    {"b": 1, "a": [True, None, "é"]},
    {"n": (1 << 63) - 1},
    {"n": 1 << 63},
    {"d": [[]] * 70},
    {"x": 1e300},
)
plain_nodes = st.fixed_dictionaries(
    {"kind": st.just("node"), "id": labels, "type": labels},
    optional={"content": st.sampled_from((None, "", "x\ny}")), "attributes": st.sampled_from(VALUES)},
)
plain_edges = st.fixed_dictionaries(
    {
        "kind": st.just("edge"),
        "from": labels,
        "to": st.sampled_from((*LABELS, "missing")),
        "relation_type": st.sampled_from(("R", "~", "MERGED_INTO")),
    },
    optional={"weight": st.sampled_from((None, 1, 0.5, -0.0, 1e-300))},
)
odd_lines = st.sampled_from((
    {"kind": "node", "id": "a", "type": "t", "version": 3, "created_at": "2025-01-02T03:04:05Z"},
    {"kind": "node", "id": "b", "content": "kept type"},
    {"kind": "node", "id": "b", "type": "t", "tags": ["x"]},
    {"kind": "node", "id": "", "type": "t"},
    {"kind": "node", "id": "a", "type": "t", "unknown": 1},
    {"kind": "edge", "from": "a", "to": "b", "relation_type": "R", "attributes": {"k": 1}},
    {"kind": "edge", "from": "a", "to": "b", "relation_type": "R", "to_graph": "elsewhere"},
))  # fmt: skip
plain_blocks = st.builds(
    lambda nodes, edges: [*nodes, *edges],
    st.lists(plain_nodes, max_size=5, unique_by=lambda node: node["id"]),
    st.lists(plain_edges, max_size=6, unique_by=lambda edge: (edge["from"], edge["to"], edge["relation_type"])),
)
mixed_blocks = st.lists(plain_nodes | plain_edges | odd_lines | st.sampled_from((b"", b"{", b"[1]")), max_size=6)


@examples(25)
@given(blocks=st.lists(plain_blocks | plain_blocks | mixed_blocks, min_size=1, max_size=4))
def test_bulk_inserts_equal_planned_writes(pool: StorePool, blocks: list[list[Any]]) -> None:
    made = [imported_by(pool, rows, blocks) for rows in (1, 1 << 40)]
    assert made[0] == made[1]


def imported_by(pool: StorePool, rows: int, blocks: list[list[Any]]) -> tuple[Any, ...]:
    """Import blocks into a store where blocks of ``rows`` rows become a base; return all that may differ by it."""
    store = f"store-{next(_numbers)}"
    pool.create(store)
    with pool.lease(store) as leased:
        leased.rows.limits = DeltaMergeLimits(rows=rows)
        importer = StreamingImport(graph_of(pool, store))
        for block in blocks:
            importer.feed(b"".join(each + b"\n" if isinstance(each, bytes) else line(each) for each in block))
            importer.flush()
        answer = importer.finish()
        with leased.reading() as read:
            nodes = sorted(read.all_nodes(), key=lambda row: row.id)
            edges = sorted(read.all_edges(), key=lambda row: row.key)
            assert (
                update_digest_for_row_changes(update_digest_for_row_changes(0, nodes, ()), edges, ())
                == leased.state.digest
            )
            for row in nodes:
                assert read.node_text(read.number(row.id), 0) == encode_node_as_unclosed_json(row) + b"}"
        changes = [change for frame in leased.journal.frames(0) for change in frame.changes()]
        assert changes[-1].state == leased.state if changes else not leased.state.sequence
        found = (without_times(each) for each in (nodes, edges, changes))
        result = msgspec.to_builtins(answer), leased.state.nodes, leased.state.edges, *found
    pool.drop(store)
    return result


def without_times(rows: Any) -> str:
    """Return rows as text, without the times and digests of their commits."""
    text = msgspec.json.encode(rows).decode()
    return re.sub(r'20[23]\d-[0-9T:.-]+Z|\b1[78]\d{14}\b|"digest":"[^"]*"', "", text)
