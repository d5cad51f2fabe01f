from __future__ import annotations

import csv
import tempfile
from pathlib import Path
from typing import Any

import httpx
import networkx as nx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given

from kgserve.graph.transfer.formats import nodes_and_edges_parquet
from tests.fuzzing import examples
from tests.graph.transfer.formats.conversion_helpers import (
    ADVERSARIAL_TEXTS,
    FORMATS,
    Row,
    blocks,
    exports,
    read,
    write,
)
from tests.server.http.serving import accepted

NDJSON = {"content-type": "application/x-ndjson"}
TIME = "2025-07-15T12:00:00.123456Z"


def everything() -> list[Row]:
    """Return a store in which each field is set somewhere, with each adversarial text."""
    stamps = {"version": 3, "created_at": TIME, "updated_at": "2025-08-01T00:00:00.000000Z"}
    nodes: list[Row] = [
        {
            "kind": "node",
            "id": f"{number} {text}",
            "type": text or "t",
            "content": text,
            "attributes": {text: text, "n": number, "x": number / 7, "list": [None, {"a": text}], "type": True},
            **stamps,
        }
        for number, text in enumerate(ADVERSARIAL_TEXTS)
    ]
    nodes[3] |= {
        "summary": ADVERSARIAL_TEXTS[8],
        "tags": [text for text in ADVERSARIAL_TEXTS if text],
        "freshness_at": TIME,
        "created_by": ADVERSARIAL_TEXTS[9],
        "valid_from": "0001-01-01T00:00:00.000000Z",
        "valid_to": "9999-12-31T23:59:59.999999Z",
    }
    nodes[5] |= {"confidence": 0.5, "access_count": 3, "last_accessed_at": TIME, "access_confidence": 1 / 3}
    nodes.append({"kind": "node", "id": "plain", "type": "t", "content": "", "attributes": {}, **stamps, "version": 1})
    edges: list[Row] = [
        {
            "kind": "edge",
            "from": f"{number} {text}",
            "to": "plain",
            "relation_type": text or "R",
            "weight": -0.1 * number,
            "attributes": {
                "created_at": "2025-07-15T14:00:00+02:00",
                "updated_at": TIME,
                "note": text,
                "deep": {"a": [1]},
            },
            "version": 2,
        }
        for number, text in enumerate(ADVERSARIAL_TEXTS)
    ]
    edges[4] |= {"ordinal": -(1 << 53), "created_by": "me", "valid_from": TIME, "valid_to": TIME[:2] + "26" + TIME[4:]}
    return [*nodes, *edges]


@pytest.mark.parametrize("kind", FORMATS)
@given(rows=exports)
@examples(15)
def test_round_trip_of_any_export(kind: str, rows: list[Row]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert read(write(kind, blocks(rows), Path(folder))) == (rows, [])


@pytest.mark.parametrize("kind", FORMATS)
def test_round_trip_through_server(kind: str, http: httpx.Client, api: str, tmp_path: Path) -> None:
    body = b"".join(blocks(everything()))
    answer = accepted(http.post(f"{api}/import", content=body, headers=NDJSON))
    assert (answer["error_count"], answer["edges_skipped_count"]) == (0, 0), answer
    exported = http.get(f"{api}/export").content
    rows, faults = read(write(kind, [exported], tmp_path))
    assert faults == []
    assert accepted(http.post(f"{api}-copy/import", content=b"".join(blocks(rows)), headers=NDJSON))["ok"] is True
    copy = http.get(f"{api}-copy/export").content
    assert sorted(copy.splitlines()) == sorted(exported.splitlines())
    assert (len(copy.splitlines()), b"valid_to" in copy, b"ordinal" in copy) == (len(everything()), True, True)


@pytest.mark.parametrize("kind", FORMATS)
def test_round_trip_of_empty_store(kind: str, tmp_path: Path) -> None:
    assert read(write(kind, [], tmp_path)) == ([], [])


def test_csv_is_readable_by_python_and_spreadsheets(tmp_path: Path) -> None:
    rows = everything()
    write("csv", blocks(rows), tmp_path)
    with (tmp_path / "out.nodes.csv").open(newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    assert [each["content"] for each in found] == [each["content"] for each in rows if each["kind"] == "node"]


def test_parquet_types_and_row_group_size(tmp_path: Path) -> None:
    rows: list[Row] = [
        {
            "kind": "node",
            "id": f"n{number}",
            "type": "t",
            "content": "x" * 100_000,
            "attributes": {},
            "created_at": TIME,
        }
        for number in range(400)
    ]
    write("parquet", blocks(rows, 1 << 20), tmp_path)
    with pq.ParquetFile(tmp_path / "out.nodes.parquet") as file:
        assert file.schema_arrow.field("created_at").type == pa.timestamp("us", tz="UTC")
        assert file.num_row_groups > 1
        assert all(
            file.metadata.row_group(number).total_byte_size < 2 * nodes_and_edges_parquet.ROW_GROUP_BYTES
            for number in range(file.num_row_groups)
        )


def test_graphml_is_readable_by_networkx_with_types(tmp_path: Path) -> None:
    rows: list[Row] = [
        {
            "kind": "node",
            "id": "a",
            "type": "t",
            "content": "c",
            "attributes": {"n": 1, "x": 0.5, "yes": True, "s": "é"},
        },
        {"kind": "node", "id": "b", "type": "t", "content": "", "attributes": {}},
        {"kind": "edge", "from": "a", "to": "b", "relation_type": "R", "weight": 0.25, "attributes": {}},
        {"kind": "edge", "from": "a", "to": "b", "relation_type": "S", "weight": 2.0, "attributes": {}},
    ]
    graph = nx.read_graphml(write("graphml", blocks(rows), tmp_path), force_multigraph=True)
    assert dict(graph.nodes["a"]) == {"type": "t", "content": "c", "n": 1, "x": 0.5, "yes": True, "s": "é"}
    assert sorted((data["relation_type"], data["weight"]) for _, _, data in graph.edges(data=True)) == [
        ("R", 0.25),
        ("S", 2.0),
    ]
    nx.write_graphml(graph, tmp_path / "again.graphml")
    back, faults = read(tmp_path / "again.graphml")
    assert faults == []
    assert [_plain(each) for each in back] == [_plain(each) for each in rows]


def _plain(each: Row) -> dict[str, Any]:
    return {name: value for name, value in each.items() if name != "kind"}


def test_round_trip_of_more_attributes_than_graphml_keys(tmp_path: Path) -> None:
    rows: list[Row] = [
        {"kind": "node", "id": f"n{number}", "type": "t", "content": "", "attributes": {f"a{number}": number, "b": "x"}}
        for number in range(1_200)
    ]
    path = write("graphml", blocks(rows, 1 << 16), tmp_path)
    assert path.read_text().count("<key ") < 1_100
    assert read(path) == (rows, [])


def test_reader_of_block_that_begins_with_edges(tmp_path: Path) -> None:
    edge: Row = {"kind": "edge", "from": "a", "to": "b", "relation_type": "R", "weight": 1.0, "attributes": {}}
    assert read(write("csv", blocks([edge]), tmp_path)) == ([edge], [])
