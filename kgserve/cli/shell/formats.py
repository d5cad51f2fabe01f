"""Output formats for programs: CSV, JSON, JSON lines and tab-separated lines.

In a cell, a node is written as ``(id :type)``; relations and paths are written as in Cypher.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from kgserve.errors import InvalidInput
from kgserve.graph.answers import CypherAnswer

Mode = Literal["table", "json", "csv", "jsonl"]
MODES: tuple[Mode, ...] = get_args(Mode)


def format_tab_separated(answer: CypherAnswer) -> Iterator[str]:
    """Yield a header and a line per row with tab-separated fields; null is an empty field."""
    if answer.columns:
        yield format_tab_separated_line(answer.columns)
    for row in answer.rows:
        yield format_tab_separated_line(["" if value is None else format_cell(value) for value in row])


def format_csv(answer: CypherAnswer) -> Iterator[str]:
    """Yield CSV with a header; null is an empty field, values other than text and numbers are JSON."""
    if answer.columns:
        yield _csv_line(answer.columns)
    for row in answer.rows:
        yield _csv_line([_csv_field(value) for value in row])


def format_json_lines(answer: CypherAnswer) -> Iterator[str]:
    """Yield one JSON object per row."""
    names = deduplicate_column_names(answer.columns)
    for row in answer.rows:
        yield _json(dict(zip(names, row, strict=True))) + "\n"


def format_json_array(answer: CypherAnswer) -> Iterator[str]:
    """Yield one JSON array of objects, one line per row."""
    if not answer.rows:
        yield "[]\n"
        return
    lines = [line.rstrip("\n") for line in format_json_lines(answer)]
    yield "[\n" + ",\n".join(lines) + "\n]\n"


WRITERS: dict[Mode, Callable[[CypherAnswer], Iterator[str]]] = {
    "table": format_tab_separated,
    "json": format_json_array,
    "csv": format_csv,
    "jsonl": format_json_lines,
}
SUFFIXES: dict[str, Mode] = {".csv": "csv", ".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl"}


def select_row_writer_by_extension(file: Path) -> Callable[[CypherAnswer], Iterator[str]]:
    """Return the writer for a file name's extension. Raises InvalidInput when the extension is unknown."""
    try:
        return WRITERS[SUFFIXES[file.suffix.lower()]]
    except KeyError:
        known = ", ".join(SUFFIXES)
        raise InvalidInput(f"{file}: unsupported extension. Supported: {known}") from None


def deduplicate_column_names(columns: list[str]) -> list[str]:
    """Return column names as distinct keys of an object; a repeated name becomes ``name_2``."""
    names: list[str] = []
    for column in columns:
        name, number = column, 1
        while name in names:
            number += 1
            name = f"{column}_{number}"
        names.append(name)
    return names


def format_tab_separated_line(fields: Sequence[str]) -> str:
    """Return fields as a tab-separated line; tabs, line breaks and backslashes are escaped."""
    escaped = (
        field.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r") for field in fields
    )
    return "\t".join(escaped) + "\n"


def format_cell(value: Any) -> str:
    """Return the text of a value in its own cell; a string is unchanged."""
    return value if isinstance(value, str) else _inner(value)


def is_graph_node_value(value: Any) -> bool:
    """Return True if a value is a node, judged by the keys of the server's JSON."""
    return isinstance(value, dict) and "_label" in value and "id" in value and "_from" not in value


def is_graph_relation_value(value: Any) -> bool:
    """Return True if a value is a relation."""
    return isinstance(value, dict) and "_label" in value and "_from" in value and "_to" in value


def is_graph_path_value(value: Any) -> bool:
    """Return True if a value is a path of nodes and relations."""
    match value:
        case {"nodes": list(nodes), "relations": list(relations), **others}:
            return not others and all(map(is_graph_node_value, nodes)) and all(map(is_graph_relation_value, relations))
        case _:
            return False


def _csv_line(fields: list[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(fields)
    return line.getvalue()


def _csv_field(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _inner(value: Any) -> str:
    if is_graph_relation_value(value):
        return f"({value['_from']})-{_arrow_text(value)}->({value['_to']})"
    if is_graph_node_value(value):
        return _node(value)
    if is_graph_path_value(value):
        return _path(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_inner(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_inner(each) for each in value) + "]"
    return _json(value)


def _node(node: Mapping[str, Any]) -> str:
    return f"({node['id']} :{node.get('type') or node['_label']})"


def _arrow_text(relation: Mapping[str, Any]) -> str:
    return f"[:{relation.get('relation_type') or relation['_label']}]"


def _path(path: Mapping[str, Any]) -> str:
    nodes: list[dict[str, Any]] = path["nodes"]
    if not nodes:
        return "()"
    parts = [_node(nodes[0])]
    for before, relation, after in zip(nodes, path["relations"], nodes[1:], strict=False):
        forward = relation["_from"] == before["id"]
        parts.append(f"{'-' if forward else '<-'}{_arrow_text(relation)}{'->' if forward else '-'}{_node(after)}")
    return "".join(parts)
