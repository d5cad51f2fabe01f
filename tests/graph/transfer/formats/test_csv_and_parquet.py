from __future__ import annotations

import math
import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kgserve.errors import InvalidInput
from tests.cli.fork_server import TOP
from tests.graph.transfer.formats.conversion_helpers import read

_US = pa.timestamp("us")


def test_csv_with_some_columns_and_spreadsheet_row_numbers(tmp_path: Path) -> None:
    nodes, edges = tmp_path / "n.csv", tmp_path / "e.csv"
    nodes.write_bytes(
        '\ufeffid,type,content,tags\r\n1,t,"two\nlines",\r\n2,t\r\n\r\n3,t,é,"[""x""]"\r\n4,t,,x\r\n'.encode()
    )
    edges.write_text("from,to,relation_type,weight\n1,3,R,0.5\n1,3,R,heavy\n1,3,R,nan\n", "utf-8")
    rows, faults = read(edges, nodes)
    assert rows == [
        {"kind": "node", "id": "1", "type": "t", "content": "two\nlines"},
        {"kind": "node", "id": "3", "type": "t", "content": "é", "tags": ["x"]},
        {"kind": "edge", "from": "1", "to": "3", "relation_type": "R", "weight": 0.5},
    ]
    assert [fault.partition(": ")[0] for fault in faults] == [
        "n.csv row 3",
        "n.csv row 6",
        "e.csv row 3",
        "e.csv row 4",
    ]


def test_csv_row_with_invalid_utf8_is_skipped(tmp_path: Path) -> None:
    file = tmp_path / "n.csv"
    file.write_bytes(b"id,type\na,t\nb\xff,t\nc,t\n")
    rows, faults = read(file)
    assert [each["id"] for each in rows] == ["a", "c"]
    assert faults == ["n.csv row 3: contains text that is not Unicode: a lone surrogate, or bytes of another encoding"]


def test_csv_unterminated_quote_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "n.csv"
    file.write_text('id,type\na,t\n"b,t\nc,t\n')
    rows, faults = read(file)
    assert [each["id"] for each in rows] == ["a"]
    assert faults == ["n.csv row 3: is not a valid CSV row: unexpected end of data"]


@pytest.mark.parametrize(
    "row", ["x" * (17 << 20), f'"{"y" * 200}\n",' * 85_000, "," * (17 << 20)], ids=["cell", "lines", "cells"]
)
def test_csv_row_over_limit_is_rejected(row: str, tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text(f"id,type\na,t\n{row}")
    with pytest.raises(InvalidInput, match=r"n\.csv row 3: is longer than"):
        read(tmp_path / "n.csv")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has no header"),
        ("name,type\n", "neither those of nodes"),
        ("id,type,color\n", "column 'color' is not one of"),
        ("id,id,type\n", "column 'id' occurs twice"),
    ],
)
def test_csv_invalid_header_is_rejected(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text(text)
    with pytest.raises(InvalidInput, match=reason):
        read(tmp_path / "n.csv")


def test_parquet_from_other_programs(tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": ["a", "b", None],
            "type": pa.array(["t", "t", "t"]).dictionary_encode(),
            "attributes": [{"x": 1}, {"x": 2}, None],
            "valid_from": pa.array([0, None, 1], pa.timestamp("ns")),
            "valid_to": pa.array([None, 10**12, None], pa.timestamp("s")),
        }
    )
    pq.write_table(table, tmp_path / "n.parquet")
    rows, faults = read(tmp_path / "n.parquet")
    assert rows[0] == {
        "kind": "node",
        "id": "a",
        "type": "t",
        "attributes": {"x": 1},
        "valid_from": "1970-01-01T00:00:00.000000Z",
    }
    assert faults == ["n.parquet row 2: valid_to is outside the years 1 to 9999"]


def test_parquet_non_finite_numbers_are_reported(tmp_path: Path) -> None:
    columns = {"from": ["a"] * 3, "to": ["b"] * 3, "relation_type": ["r"] * 3, "weight": [float("nan"), 0.5, -math.inf]}
    pq.write_table(pa.table(columns), tmp_path / "e.parquet")
    rows, faults = read(tmp_path / "e.parquet")
    assert [each["weight"] for each in rows] == [0.5]
    assert faults == [
        "e.parquet row 1: weight is nan, which is not a finite number",
        "e.parquet row 3: weight is -inf, which is not a finite number",
    ]


def test_parquet_values_without_python_type_are_reported(tmp_path: Path) -> None:
    moments = pa.array([1_735_689_600_000_000_001], pa.timestamp("ns"))
    attributes = pa.StructArray.from_arrays([moments], ["at"])
    pq.write_table(pa.table({"id": ["a"], "type": ["t"], "attributes": attributes}), tmp_path / "n.parquet")
    with pytest.raises(InvalidInput, match=r"n\.parquet cannot be read after row 0: Nanosecond"):
        read(tmp_path / "n.parquet")


def test_parquet_dictionary_texts_use_bounded_memory(tmp_path: Path) -> None:
    rows, long = 60, "x" * (4 << 20)
    content = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([long]))
    table = pa.table({"id": [str(n) for n in range(rows)], "type": ["t"] * rows, "content": content})
    pq.write_table(table, tmp_path / "n.parquet", store_schema=False)
    assert (tmp_path / "n.parquet").stat().st_size < 1 << 20
    command = [sys.executable, "-c", MEASURING, str(tmp_path / "n.parquet")]
    measured = subprocess.run(command, capture_output=True, text=True, check=True, cwd=TOP)
    taken, *records = map(int, measured.stdout.split())
    assert taken < 120 << 20
    assert len(records) == rows
    assert min(records) > len(long)


# Measured in a separate process, without the memory of other tests.
MEASURING = """
import sys, tracemalloc
from contextlib import ExitStack
from pathlib import Path
from kgserve.graph.transfer.formats.import_export_files import open_import_source_tables
from kgserve.graph.transfer.formats.ndjson_exchange_lines import NdjsonExchangeLine

def sizes(path, stack):
    for part in open_import_source_tables("parquet", [path], stack):
        yield from (len(record.line) for record in part.records if isinstance(record, NdjsonExchangeLine))

tracemalloc.start()
with ExitStack() as stack:
    records = list(sizes(Path(sys.argv[1]), stack))
print(tracemalloc.get_traced_memory()[1], *records)
"""


def test_parquet_row_over_limit_is_reported(tmp_path: Path) -> None:
    tags = pa.array([["x" * 1000] * 9000, ["y"]])
    pq.write_table(pa.table({"id": ["a", "b"], "type": ["t", "t"], "tags": tags}), tmp_path / "n.parquet")
    rows, faults = read(tmp_path / "n.parquet")
    assert [each["tags"] for each in rows] == [["y"]]
    assert [fault.partition(" bytes")[0].rpartition(" ")[0] for fault in faults] == ["n.parquet row 1: has"]


def test_corrupt_parquet_is_rejected_with_message(tmp_path: Path) -> None:
    table = pa.table(
        {"id": ["a"] * 20, "type": ["t"] * 20, "tags": [["x"]] * 20, "created_at": pa.array([1] * 20, _US)}
    )
    pq.write_table(table, tmp_path / "n.parquet")
    whole = (tmp_path / "n.parquet").read_bytes()
    source = random.Random(5)
    for _ in range(300):
        text = bytearray(whole)
        text[source.randrange(len(text))] = source.randrange(256)
        (tmp_path / "n.parquet").write_bytes(text)
        with suppress(InvalidInput):
            read(tmp_path / "n.parquet")


def test_file_that_is_not_parquet_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "n.parquet").write_bytes(b"PAR1" + b"x" * 100 + b"PAR1")
    with pytest.raises(InvalidInput, match=r"n\.parquet is not a readable Parquet file"):
        read(tmp_path / "n.parquet")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "n.parquet")
    with pytest.raises(InvalidInput, match="neither those of nodes"):
        read(tmp_path / "n.parquet")
