"""Parquet: one file of nodes and one of edges, times as timestamps, attributes as JSON text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from kgserve.errors import InvalidInput
from kgserve.graph.transfer.formats.ndjson_exchange_lines import (
    EDGE_FILE_FIELDS,
    KIND_EDGES,
    KIND_NODES,
    MAX_LINE_BYTES,
    ExportNodeEdgeSplitter,
    ImportRecord,
    ImportSourceTable,
    RejectedImportRow,
    detect_node_or_edge_table,
    raw_json_to_text,
    record_values,
    table_row_to_ndjson_line,
)
from kgserve.graph.transfer.formats.nodes_and_edges_csv import TableFileOpener
from kgserve.platform.lazy_pyarrow import pa, parse_arrow_type, pc, pq
from kgserve.platform.timestamps import format_rfc3339_timestamp, is_representable_time, parse_rfc3339_timestamp
from kgserve.storage.model.node_edge_fields import NODE, TIMESTAMP_TYPE, RowField

ROW_GROUP_BYTES = 32 << 20
"""Approximate size of the texts in a row group, which is held in memory while it is written."""
READ_BATCH_BYTES = 32 << 20
"""Approximate size of the batches in which rows are read, according to the file's metadata."""
READ_BATCH_ROWS = range(8, 1_000)

_REQUIRED_FIELDS = {"id", "from", "to", "relation_type"}


def _schema(fields: tuple[RowField, ...]) -> pa.Schema:
    return pa.schema(
        [pa.field(field.wire, _type(field), nullable=field.wire not in _REQUIRED_FIELDS) for field in fields]
    )


def _type(field: RowField) -> pa.DataType:
    return pa.timestamp("us", tz="UTC") if field.type is TIMESTAMP_TYPE else parse_arrow_type(field.type.arrow)


def _read_errors() -> tuple[type[Exception], ...]:
    # ValueError: names that are not UTF-8, and values without a Python type, such as nanoseconds in a list.
    return (pa.ArrowException, OSError, ValueError)


def write_nodes_and_edges_parquet(blocks: Iterable[bytes], sink: TableFileOpener) -> int:
    """Write an export as Parquet, one file of nodes and one of edges; return the number of its lines."""
    lines = ExportNodeEdgeSplitter(blocks)
    with sink(KIND_NODES) as file:
        _write(file, NODE.exchanged, (map(record_values, batch) for batch in lines.nodes()))
    with sink(KIND_EDGES) as file:
        _write(file, EDGE_FILE_FIELDS, (map(record_values, batch) for batch in lines.edges()))
    return lines.count


def _write(file: BinaryIO, fields: tuple[RowField, ...], batches: Iterable[Iterable[tuple[Any, ...]]]) -> None:
    schema = _schema(fields)
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        group: list[pa.RecordBatch] = []
        for rows in batches:
            columns = zip(fields, zip(*rows, strict=True), strict=True)
            arrays = [pa.array(_column(field, values), _type(field)) for field, values in columns]
            group.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
            if sum(batch.nbytes for batch in group) >= ROW_GROUP_BYTES:
                _write_group(writer, group)
                group = []
        if group:
            _write_group(writer, group)


def _write_group(writer: pq.ParquetWriter, group: list[pa.RecordBatch]) -> None:
    table = pa.Table.from_batches(group)
    writer.write_table(table, row_group_size=table.num_rows)


def _column(field: RowField, values: tuple[Any, ...]) -> Sequence[Any]:
    if field.type is TIMESTAMP_TYPE:
        return list(map(_parse_moment, values))
    return list(map(raw_json_to_text, values)) if field.name == "attributes" else values


def _parse_moment(text: str | None) -> int | None:
    return None if text is None else parse_rfc3339_timestamp(text)


class ParquetTable:
    """A Parquet file of nodes or edges, read in batches. Raises InvalidInput for a file of another format."""

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        try:
            self._file = pq.ParquetFile(path, read_dictionary=_text_columns(path))
            columns = self._file.schema_arrow.names
        except _read_errors() as error:
            raise InvalidInput(f"{name} is not a readable Parquet file: {error}") from error
        self.kind = detect_node_or_edge_table(name, columns)

    def part(self) -> ImportSourceTable:
        """Return its rows, numbered from 1; the file is closed after the last one."""
        return ImportSourceTable(self.name, "row", self._records())

    def _records(self) -> Iterator[ImportRecord]:
        number = 0
        with self._file as file:
            try:
                for batch in file.iter_batches(_batch_rows(file.metadata)):
                    for part in _split_batch(batch):
                        yield from _batch_records(self.kind, number, part)
                        number += part.num_rows
            except _read_errors() as error:
                raise InvalidInput(f"{self.name} cannot be read after row {number}: {error}") from error


def _batch_rows(metadata: pq.FileMetaData) -> int:
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    largest = max((group.total_byte_size / max(group.num_rows, 1) for group in groups), default=1.0)
    return int(min(max(READ_BATCH_BYTES / max(largest, 1.0), READ_BATCH_ROWS.start), READ_BATCH_ROWS.stop))


def _text_columns(path: Path) -> list[str]:
    """Return the text columns, which are read dictionary-encoded.

    In a dictionary, a few bytes may represent the same long text in every row.
    """
    schema = pq.read_metadata(path).schema
    columns = (schema.column(index) for index in range(len(schema)))
    return [
        column.path
        for column in columns
        if column.physical_type == "BYTE_ARRAY" and column.logical_type.type in {"STRING", "JSON", "NONE"}
    ]


def _split_batch(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split a batch into parts whose texts fit into memory, or of one row."""
    if batch.num_rows <= 1 or _size(batch) <= READ_BATCH_BYTES:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _split_batch(batch.slice(0, half))
    yield from _split_batch(batch.slice(half))


def _size(batch: pa.RecordBatch) -> int:
    return sum(map(_text_size, batch.columns))


def _text_size(array: pa.Array) -> int:
    """Return the size of the texts in a column in bytes, counting repeated texts repeatedly."""
    kind = array.type
    if pa.types.is_dictionary(kind) and (
        pa.types.is_large_string(kind.value_type) or pa.types.is_string(kind.value_type)
    ):
        lengths = pc.call_function("binary_length", [array.dictionary]).cast(pa.int64())
        return pc.call_function("sum", [lengths.take(array.indices)]).as_py() or 0
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _text_size(array.flatten())
    if pa.types.is_struct(kind):
        return sum(map(_text_size, array.flatten()))
    return 0


def _batch_records(kind: str, before: int, batch: pa.RecordBatch) -> Iterator[ImportRecord]:
    if batch.num_rows == 1 and (size := _size(batch)) > MAX_LINE_BYTES:
        yield RejectedImportRow(before + 1, f"has {size:,} bytes; the limit is {MAX_LINE_BYTES:,}")
        return
    columns = [_values(column) for column in batch.columns]
    names = batch.schema.names
    for number, row in enumerate(zip(*columns, strict=True), before + 1):
        values = dict(zip(names, row, strict=True))
        fault = next(filter(None, (_cell_fault(name, value) for name, value in values.items())), None)
        yield RejectedImportRow(number, fault) if fault else table_row_to_ndjson_line(kind, number, values)


def _cell_fault(name: str, value: object) -> str | None:
    if isinstance(value, _OutOfRange):
        return f"{name} is outside the years 1 to 9999"
    if isinstance(value, float) and not math.isfinite(value):
        return f"{name} is {value}, which is not a finite number"
    return None


class _OutOfRange:
    """A time outside the years 1 to 9999."""


def _values(column: pa.Array) -> list[Any]:
    if not pa.types.is_timestamp(column.type):
        values = column.to_pylist()
        return [_require_microseconds(value) for value in values] if "[ns" in str(column.type) else values
    precise = column.cast(pa.timestamp("us", tz=column.type.tz), safe=False)
    return [_format_moment(value) for value in precise.cast(pa.int64()).to_pylist()]


def _require_microseconds(value: Any) -> Any:
    """Return a value with pandas' times as those of Python: pyarrow uses pandas for nanoseconds if it is installed.

    Raises ValueError for nanoseconds, as pyarrow does without pandas.
    """
    if isinstance(value, dict):
        return {key: _require_microseconds(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_require_microseconds(each) for each in value]
    if getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0):
        raise ValueError(f"Nanosecond precision is not supported: {value}")
    convert = getattr(value, "to_pydatetime", None) or getattr(value, "to_pytimedelta", None)
    return convert() if convert is not None else value


def _format_moment(moment: int | None) -> str | _OutOfRange | None:
    if moment is None:
        return None
    return format_rfc3339_timestamp(moment) if is_representable_time(moment) else _OutOfRange()
