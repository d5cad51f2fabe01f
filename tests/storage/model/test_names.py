"""Normalized names, and the names of a node."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from kgserve.storage.model.entity_names import (
    MAX_ALIASES,
    list_entity_names_and_aliases,
    normalize_entity_name,
    parse_entity_aliases,
)
from kgserve.storage.model.node_edge_fields import NodeExtras
from kgserve.storage.model.node_edge_rows import NodeRow


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("  Ada \t Lovelace ", "ada lovelace"),
        ("STRASSE", "straße"),
        ("Ｋｇ\u3000Serve", "kg serve"),
        ("ﬁle", "FILE"),
        ("Å", "a\u030a"),
        ("ΣΊΣΥΦΟΣ", "σίσυφος"),
        ("\u0345Ι", "ιι"),
    ],
)
def test_names_are_equal_despite_case_whitespace_and_compatibility_forms(one: str, other: str) -> None:
    assert normalize_entity_name(one) == normalize_entity_name(other)
    assert normalize_entity_name(normalize_entity_name(one)) == normalize_entity_name(one)


@pytest.mark.parametrize(("one", "other"), [("a b", "ab"), ("résumé", "resume"), ("A-1", "A 1")])
def test_names_with_other_letters_differ(one: str, other: str) -> None:
    assert normalize_entity_name(one) != normalize_entity_name(other)


@pytest.mark.parametrize(
    ("attributes", "aliases"),
    [
        ({}, []),
        ({"other": ["aliases"]}, []),
        ({"aliases": "Ada"}, []),
        ({"aliases": ["Ada", 1, None, "", " ", "x" * 1_000_000, "Countess"]}, ["Ada", "Countess"]),
        ({"aliases": [f"a{number}" for number in range(MAX_ALIASES + 1)]}, [f"a{at}" for at in range(MAX_ALIASES)]),
    ],
)
def test_aliases_are_strings_of_a_list(attributes: dict[str, Any], aliases: list[str]) -> None:
    text = json.dumps(attributes)
    assert parse_entity_aliases(text) == aliases
    row = NodeRow("n", "person", "", text, 1, 1, 1, 1)
    assert (
        list_entity_names_and_aliases(row)
        == list_entity_names_and_aliases(msgspec.structs.replace(row, extras=NodeExtras()))
        == []
    )
    assert list_entity_names_and_aliases(msgspec.structs.replace(row, extras=NodeExtras(name="Ada"))) == [
        "Ada",
        *aliases,
    ]
