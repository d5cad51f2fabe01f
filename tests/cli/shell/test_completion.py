from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest

from kgserve.cli.shell.interactive_prompt import find_completion_context, find_type_of_property_being_typed
from kgserve.cli.shell.syntax_highlighter import tokenize_cypher_for_highlighting
from kgserve.cypher import lexer
from kgserve.cypher.completion import COMPLETION_FUNCTIONS, COMPLETION_KEYWORDS, PROPERTIES_BY_LABEL
from kgserve.cypher.interpreter.aggregates import AGGREGATE_NAMES
from kgserve.cypher.interpreter.opencypher_parser import parse_cypher_query
from kgserve.cypher.interpreter.scalar_function_table import find_scalar_function
from tests.project.reading import TOP


@pytest.mark.parametrize(
    ("before", "what", "begun"),
    [
        (":", "command", ""),
        ("  :us", "command", "us"),
        (":use de", "store", "de"),
        (":help :u", "help", "u"),
        (":mode c", "mode", "c"),
        (":write ", "switch", ""),
        (":set $na", "parameter", "na"),
        (":source ~/x", "file", "~/x"),
        (":export out", "file", "out"),
        (":stores x", "nothing", ""),
        (":export out.csv MATCH (n:E", "node label", "E"),
        ("mat", "word", "mat"),
        ("MATCH (n) RETURN co", "word", "co"),
        ("MATCH (n:", "node label", ""),
        ("MATCH (:Ent", "node label", "Ent"),
        ("MATCH (n)-[r:REL", "relation label", "REL"),
        ("MATCH (n)-[:A|B", "relation label", "B"),
        ("MATCH (n:Entity {ty", "node property", "ty"),
        ("MATCH (n:Entity {id: 'x', ty", "node property", "ty"),
        ("MATCH ()-[r:RELATES_TO {we", "relation property", "we"),
        ("MATCH (n:Entity) WHERE n.", "node property", ""),
        ("MATCH (n)-[r:RELATES_TO]->() RETURN r.w", "relation property", "w"),
        ("WITH 1 AS x RETURN x.c", "property", "c"),
        ("MATCH (n {type: 're", "node type", "re"),
        ("MATCH (n) WHERE n.type = 'two wor", "node type", "two wor"),
        ("MATCH (n) WHERE n.type IN ['a', \"b", "node type", "b"),
        ("MATCH ()-[r {relation_type: 'IM", "relation type", "IM"),
        ("MATCH (n {id: 're", "nothing", ""),
        ("RETURN 1 // mat", "nothing", ""),
        ("RETURN 'a', 'b' AS mat", "word", "mat"),
        ("MATCH (n {id: $st", "parameter", "st"),
        ("CALL show_", "procedure", "show_"),
        ("RETURN 12", "nothing", ""),
        ("MATCH (n:task|pr", "node label", "pr"),
        ("MATCH (n:`two words`|pr", "node label", "pr"),
        ("MATCH (n:`two wo", "node label", "`two wo"),
        ("MATCH (n) WHERE n:ta", "node label", "ta"),
        ("MATCH (n:task {a: 1, b:ta", "word", "ta"),
        ("MATCH (n)-[r:A|:B*1..3 {si", "relation property", "si"),
        ("MATCH (n:task {`due", "node property", "`due"),
        ("MATCH p = (a)-->() RETURN [x IN nodes(p) | x.na", "property", "na"),
        ("CALL db.la", "procedure", "db.la"),
        ("RETURN duration.be", "word", "duration.be"),
        ("MATCH (n) RETURN n.date.tr", "property", "tr"),
    ],
)
def test_completion_context_at_the_cursor(before: str, what: str, begun: str) -> None:
    assert find_completion_context(before) == (what, begun)


@pytest.mark.parametrize(
    ("before", "type_"),
    [
        ("MATCH (t:task {st", "task"),
        ("MATCH (t:task {id: 'a', st", "task"),
        ("MATCH (t:`two words`)-[r:BLOCKS]->(b:task) WHERE r.", "BLOCKS"),
        ("MATCH (t:`two words`)-[r:BLOCKS]->(b:task) WHERE t.na", "two words"),
        ("MATCH (t)-[:BLOCKS {si", "BLOCKS"),
        ("MATCH (t) WHERE t.", None),
    ],
)
def test_completed_properties_belong_to_a_type(before: str, type_: str | None) -> None:
    assert find_type_of_property_being_typed(before) == type_


def test_labels_and_properties_are_those_of_the_schema() -> None:
    statements = "\n".join(path.read_text() for path in sorted((TOP / "schema").glob("*.cypher")))
    for label, properties in PROPERTIES_BY_LABEL.items():
        found = re.search(rf"TABLE IF NOT EXISTS {label} \((.*?)\n\);", statements, re.DOTALL)
        assert found
        columns = dict(re.findall(r"^\s+(\w+)\s+([A-Z0-9]+),?$", found[1], re.MULTILINE))
        added = dict(re.findall(rf"ALTER TABLE {label} ADD (\w+) ([A-Z0-9\[\]]+);", statements))
        # The placeholder of another store's node has a key for the engine only.
        assert {name: kind for name, kind in (columns | added).items() if name != "key"} == properties


def test_completed_keywords_are_allowed_in_statements() -> None:
    interpreted = {"FOREACH", "REDUCE", "REMOVE"}
    assert set(COMPLETION_KEYWORDS) - interpreted <= lexer.KEYWORDS - lexer.FORBIDDEN_WORDS
    parse_cypher_query("MATCH (n) REMOVE n.x FOREACH (y IN [reduce(s = 0, x IN [1] | s + x)] | SET n.x = y)")


@pytest.mark.parametrize("name", COMPLETION_FUNCTIONS)
def test_completed_functions_are_known(name: str) -> None:
    known = name.lower() in lexer.ALLOWED_FUNCTIONS or name.lower() in {"shortestpath", "allshortestpaths"}
    assert (
        known or name.lower() in AGGREGATE_NAMES | {"coalesce"} or find_scalar_function(name.lower(), datetime.now(UTC))
    )


def test_pieces_of_a_statement_have_roles() -> None:
    text = """MATCH (t:task|`two words` {due: $d})-[:BLOCKS|AFTER*1..2]->(b) // why
    WHERE b:task AND toUpper(b.name) = 'X' RETURN [x IN nodes(p) WHERE x:task | x.id], EXISTS { (b) WHERE b:done }"""
    pieces = [*tokenize_cypher_for_highlighting(text)]
    assert "".join(piece.text for piece in pieces) == text
    roles = [(piece.role, piece.text) for piece in pieces if piece.role not in {"plain", "keyword"}]
    assert roles == [
        *(("label", "task"), ("label", "`two words`"), ("property", "due"), ("parameter", "$d")),
        *(("relation type", "BLOCKS"), ("relation type", "AFTER"), ("number", "1"), ("number", "2")),
        *(("comment", "// why"), ("label", "task"), ("function", "toUpper"), ("property", "name"), ("string", "'X'")),
        *(("function", "nodes"), ("label", "task"), ("property", "id"), ("label", "done")),
    ]


@pytest.mark.parametrize("text", ["MATCH (n:`a", "RETURN 'x", "/* a", "}])", "MATCH (n:", ":|.{:"])
def test_pieces_of_unfinished_text_are_complete(text: str) -> None:
    assert "".join(piece.text for piece in tokenize_cypher_for_highlighting(text)) == text
