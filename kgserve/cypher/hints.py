"""What helps whoever writes Cypher for a graph that has other labels, relation types and properties than here.

The engine names the first of them alone; a hint is about all that stand in the statement.
"""

from __future__ import annotations

import re

from kgserve.model.fields import EDGE, NODE

LABEL, RELATION = "Entity", "RELATES_TO"
_KNOWN = {LABEL, RELATION, "Elsewhere", "LINKS_TO"}

_NAMES = r"\w*\s*:\s*(?P<names>[\w`]+(?:\s*\|\s*:?\s*[\w`]+)*)"
_OF_NODES, _OF_EDGES = re.compile(rf"\(\s*{_NAMES}"), re.compile(rf"\[\s*{_NAMES}")
_PROPERTY = re.compile(r"\b[A-Za-z_]\w*\.(?P<dotted>[A-Za-z_]\w*)\b(?!\s*\()|[{,]\s*(?P<keyed>[A-Za-z_]\w*)\s*:")
_TEXTS = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_MOST = 5
_LONGEST = 100

_NODES, _EDGES = (tuple(field.name for field in row.whole) for row in (NODE, EDGE))
# Their ends are what the pattern says, and no property of theirs.
_OF_RELATIONS = tuple(name for name in _EDGES if name not in {"source", "target"})
# Who asks for the name of a node means its id, as long as the store has no names.
_PROPERTIES = {*_NODES, *_OF_RELATIONS} - {"name"}
_MEANT = {
    **dict.fromkeys(("name", "title", "lineage_id"), "id"),
    **dict.fromkeys(("kind", "label", "entity_type", "entityType"), "type"),
    **dict.fromkeys(("text", "description", "body"), "content"),
    **dict.fromkeys(("metadata", "properties"), "attributes"),
    **dict.fromkeys(("relationType", "relation", "predicate"), "relation_type"),
}


def hint(message: str, statement: str) -> str:
    """What to write instead, where the engine says that a table or a property is not there; else nothing."""
    text = _TEXTS.sub("''", statement)
    if re.match(r"Table \S+ does not exist", message):
        return "".join([_hint_of_labels(text), _hint_of_properties(text)])
    if message.startswith("Cannot find property"):
        return _hint_of_properties(text) or _there_are()
    return ""


def _hint_of_labels(text: str) -> str:
    nodes, edges = _others(_OF_NODES, text), _others(_OF_EDGES, text)
    said = [
        *(_instead(LABEL, name, "type") for name in nodes),
        *(_instead(RELATION, name, "relation_type") for name in edges),
    ]
    return f"; the only label is :{LABEL}, the only relation type :{RELATION}: {', '.join(said)}" if said else ""


def _instead(known: str, name: str, field: str) -> str:
    return f"write :{known} for :{name} and {field} = '{name.replace('`', '')}' where that is meant"


def _others(pattern: re.Pattern[str], text: str) -> list[str]:
    """The names in patterns that are none of those there are, each once."""
    found = dict.fromkeys(each["names"] for each in pattern.finditer(text))
    return [name for name in found if name not in _KNOWN and len(name) <= _LONGEST][:_MOST]


def _hint_of_properties(text: str) -> str:
    found = dict.fromkeys(each["dotted"] or each["keyed"] for each in _PROPERTY.finditer(text))
    unknown = [name for name in found if name not in _PROPERTIES]
    if not unknown:
        return ""
    instead = "".join(f"; write {_MEANT[name]} for {name}" for name in unknown if name in _MEANT)
    return instead + _there_are()


def _there_are() -> str:
    own = 'WHERE e.attributes CONTAINS \'"status":"open"\''
    fields = f"nodes have {', '.join(_NODES)}; edges {', '.join(_OF_RELATIONS)}"
    return f"; {fields}; what is your own is in attributes, which is JSON text: {own}"
