from __future__ import annotations

import re

import pytest

from kgserve.cli.shell.terminal import completion_context
from kgserve.cypher import lexer
from kgserve.cypher.completion import COMPLETION_KEYWORDS, PROPERTIES_BY_LABEL
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
    ],
)
def test_completion_context_at_the_cursor(before: str, what: str, begun: str) -> None:
    assert completion_context(before) == (what, begun)


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
    assert set(COMPLETION_KEYWORDS) <= lexer.KEYWORDS - lexer.FORBIDDEN_WORDS
