from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kgserve.errors import InvalidInput
from tests.graph.transfer.formats.conversion_helpers import Row, read

MAPPING = """
delimiter = ";"
encoding = "latin-1"

[[nodes]]
file = "people.csv"
id = "person:{id}"
type = "Person"
content = ["{first} {last}", "{bio}"]
tags = { column = "groups", separator = "|" }
valid_from = "{joined}"
attributes = { age = "int", active = "bool", extra = "json", since = { column = "joined", type = "datetime" } }

[[nodes]]
file = "things.csv"
id = "{{{name}}}"
type = "{kind}"

[[edges]]
file = "owns.csv"
from = "person:{who}"
to = "{{{what}}}"
relation_type = "OWNS"
weight = "{share}"
ordinal = "{place}"
"""
PEOPLE = """id;first;last;bio;groups;joined;age;active;extra
1;Zoë;Müller;"likes; semicolons";a | b|;2020-01-02;41;yes;{"k":[1]}
2;Bob;;;;;;;
3;Eve;;;;;old;;
;Nobody;;;;;;;
5;Ann;;;;yesterday;;;
6;Tim;;;;;;perhaps;
7;Kim;;;;;;;{
"""


def written(folder: Path, mapping: str = MAPPING) -> Path:
    (folder / "people.csv").write_text(PEOPLE, "latin-1")
    (folder / "things.csv").write_text("name;kind\ncar;Vehicle\n")
    (folder / "owns.csv").write_text("who;what;share;place\n1;car;0.5;3\n2;car;;\n2;car;much;\n")
    (folder / "mapping.toml").write_text(mapping)
    return folder / "mapping.toml"


def test_mapping_converts_columns_to_nodes_and_edges(tmp_path: Path) -> None:
    rows, faults = read(kind="csv", mapping=written(tmp_path))
    first: Row = {
        "kind": "node",
        "id": "person:1",
        "type": "Person",
        "content": "Zoë Müller\nlikes; semicolons",
        "attributes": {"age": 41, "active": True, "extra": {"k": [1]}, "since": "2020-01-02T00:00:00+00:00"},
        "tags": ["a", "b"],
        "valid_from": "2020-01-02T00:00:00+00:00",
    }
    assert rows[0] == first
    assert [each["id"] for each in rows[1:3]] == ["person:2", "{car}"]
    assert rows[3] == {
        "kind": "edge",
        "from": "person:1",
        "to": "{car}",
        "relation_type": "OWNS",
        "weight": 0.5,
        "ordinal": 3,
        "attributes": {},
    }
    assert rows[4]["from"] == "person:2"
    assert faults == [
        "people.csv row 4: age is 'old', which is not an integer",
        "people.csv row 5: id: column id is empty",
        "people.csv row 6: joined is 'yesterday', which is not a time such as 2025-07-15T12:00:00Z",
        "people.csv row 7: active is 'perhaps', which is neither true nor false",
        "people.csv row 8: extra is not JSON: Input data was truncated",
        "owns.csv row 4: weight is 'much', which is not a number",
    ]


def test_an_empty_optional_end_leaves_out_its_node_and_edge_only(tmp_path: Path) -> None:
    (tmp_path / "staff.csv").write_text("name,company\nAda,Acme\nAlan,\n,Acme\n")
    mapping = tmp_path / "staff.toml"
    mapping.write_text(
        '[[nodes]]\nfile = "staff.csv"\nid = "{name}"\ntype = "person"\n'
        '[[nodes]]\nfile = "staff.csv"\nid = "{company}"\ntype = "company"\n'
        '[[edges]]\nfile = "staff.csv"\nfrom = "{name}"\nto = "{company}"\nrelation_type = "WORKS_AT"\n'
    )
    rows, faults = read(kind="csv", mapping=mapping)
    assert [each["id"] for each in rows if each["kind"] == "node"] == ["Ada", "Alan", "Acme", "Acme"]
    assert [(each["from"], each["to"]) for each in rows if each["kind"] == "edge"] == [("Ada", "Acme")]
    assert faults == ["staff.csv row 4: id: column name is empty"]


def test_given_files_replace_files_of_mapping(tmp_path: Path) -> None:
    mapping = written(tmp_path)
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "things.csv").write_text("name;kind\nboat;Vehicle\n")
    rows, _ = read(tmp_path / "else" / "things.csv", kind="csv", mapping=mapping)
    assert [each["id"] for each in rows] == ["{boat}"]
    with pytest.raises(InvalidInput, match=r"not in the mapping: unknown\.csv"):
        read(tmp_path / "unknown.csv", kind="csv", mapping=mapping)


def test_mapping_of_cross_store_edges(tmp_path: Path) -> None:
    mapping = written(tmp_path, MAPPING + 'to_graph = "{where}"\n')
    (tmp_path / "owns.csv").write_text("who;what;share;place;where\n1;car;;;garage\n2;car;;;\n")
    rows, _ = read(kind="csv", mapping=mapping)
    assert [each.get("to_graph") for each in rows if each["kind"] == "edge"] == ["garage", None]


def test_mapping_in_json_equals_toml(tmp_path: Path) -> None:
    written(tmp_path)
    mapping = tmp_path / "mapping.json"
    node = {"file": "things.csv", "id": "{name}", "type": "{kind}"}
    mapping.write_bytes(msgspec.json.encode({"delimiter": ";", "nodes": [node]}))
    rows, faults = read(kind="csv", mapping=mapping)
    assert (rows, faults) == ([{"kind": "node", "id": "car", "type": "Vehicle", "content": "", "attributes": {}}], [])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (('type = "Person"', 'typ = "Person"'), r"nodes\[0\]\.typ: Unknown field"),
        (('id = "person:{id}"', 'id = "person:{uid}"'), r"nodes\[0\]\.id: people\.csv has no column 'uid'"),
        (('id = "person:{id}"', 'id = "person:{id"'), "an unmatched brace"),
        (('age = "int"', 'age = "integer"'), r"Invalid enum value 'integer'"),
        (('delimiter = ";"', 'delimiter = ";;"'), "delimiter"),
        (("latin-1", "klingon"), "unknown encoding: klingon"),
        (("latin-1", "base64"), "encoding: 'base64' is not a text encoding"),
        (("latin-1", "punycode"), "Unsupported error handling"),
        (("latin-1", "utf-16"), r"row 1: is not valid utf-16 text"),
        (("owns.csv", "a\\u0000b.csv"), r"edges\[0\]\.file: .*null byte"),
        ((MAPPING, "a = " + "[" * 50_000), "cannot be read as TOML"),
        (("[[edges]]", "[[edges]"), "cannot be read as TOML"),
        (("owns.csv", "none.csv"), r"edges\[0\]\.file: .*none\.csv: No such file"),
        ((MAPPING, ""), "neither nodes nor edges"),
    ],
)
def test_invalid_mapping_is_rejected_with_path(change: tuple[str, str], reason: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=reason):
        read(kind="csv", mapping=written(tmp_path, MAPPING.replace(*change)))


def test_mapping_rejects_duplicate_column(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("id,name,name\n1,a,b\n")
    mapping = tmp_path / "mapping.toml"
    mapping.write_text('[[nodes]]\nfile = "p.csv"\nid = "{id}"\ntype = "t"\n')
    assert read(kind="csv", mapping=mapping)[0][0]["id"] == "1"
    mapping.write_text('[[nodes]]\nfile = "p.csv"\nid = "{name}"\ntype = "t"\n')
    with pytest.raises(InvalidInput, match=r"nodes\[0\]\.id: p\.csv has more than one column 'name'"):
        read(kind="csv", mapping=mapping)
