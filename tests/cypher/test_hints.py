"""Hints for statements written for another schema."""

from __future__ import annotations

import pytest

from kgserve.projections.cypher_engine.driver.error_translation import hint_for_unknown_schema_names

NO_TABLE, NO_PROPERTY = "Table Person does not exist.", "Cannot find property name for e."


@pytest.mark.parametrize(
    ("message", "statement", "said"),
    [
        (NO_TABLE, "MATCH (p:Person) RETURN p.id", ["replace :Person by :Entity and type = 'Person'"]),
        (NO_TABLE, "MATCH (:`Person`) RETURN 1", ["replace :`Person` by :Entity and type = 'Person'"]),
        (
            NO_TABLE,
            "MATCH (a:Person)-[r:KNOWS|LIKES]->(b) WHERE a.name = b.title RETURN a.id",
            [
                "replace :Person by",
                "replace :KNOWS|LIKES by :RELATES_TO and",
                "write id for name",
                "write id for title",
            ],
        ),
        (NO_PROPERTY, "MATCH (e:Entity {name: 'a'}) RETURN e", ["write id for name; nodes have id, type, "]),
        (NO_PROPERTY, "MATCH (e:Entity) RETURN e.colour", ["nodes have id, ", "edges relation_type, weight, "]),
    ],
)
def test_hint_lists_unknown_names_and_alternatives(message: str, statement: str, said: list[str]) -> None:
    found = hint_for_unknown_schema_names(message, statement)
    assert all(each in found for each in said), found


@pytest.mark.parametrize(
    ("message", "statement"),
    [
        ("Variable x is not in scope.", "MATCH (p:Person) RETURN x.name"),
        (NO_TABLE, "MATCH (e:Entity)-[:RELATES_TO]->() WHERE e.id = '(p:Person) e.name' RETURN e.type"),
        (NO_TABLE, f"MATCH (e:{'x' * 1_000}) RETURN 1"),
    ],
)
def test_no_hint_for_known_names_texts_or_long_names(message: str, statement: str) -> None:
    assert hint_for_unknown_schema_names(message, statement) == ""
