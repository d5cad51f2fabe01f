"""The engine's errors, told apart by their text, for it raises RuntimeError for everything."""

from __future__ import annotations

import re

import structlog

from kgserve.cypher.guard import Statement
from kgserve.errors import (
    EngineFailed,
    FieldError,
    Forbidden,
    InvalidInput,
    KgserveError,
    StorageFull,
    TimedOut,
    Unavailable,
)
from kgserve.storage.model.fields import EDGE, NODE

log = structlog.get_logger()

# First match wins. Texts of kuzu 0.11.3, which are also those of ladybug 0.20.4.
_ERRORS_BY_ENGINE_TEXT: tuple[tuple[str, type[KgserveError], str], ...] = (
    ("Interrupted.", TimedOut, "the query ran into its time limit and was stopped"),
    ("No space left on device", StorageFull, "no room on the disk; free some space and try again"),
    ("Buffer manager exception", Unavailable, "the query needs more memory than the store's page cache has"),
    ("Parser exception", InvalidInput, "the query cannot be parsed"),
    ("Binder exception", InvalidInput, "the query does not fit the schema"),
)


def translate(error: RuntimeError) -> KgserveError:
    """The error of ours that an engine error stands for; EngineFailed for what has no entry."""
    text = str(error)
    for part, kind, message in _ERRORS_BY_ENGINE_TEXT:
        if part in text:
            return kind(message)
    return EngineFailed(f"the engine failed: {text}")


_ENGINE_EXCEPTION_KINDS = ("Parser", "Binder", "Catalog", "Conversion", "Overflow", "Runtime")
_ENGINE_EXCEPTION_PATTERN = re.compile(
    rf"(?:{'|'.join(_ENGINE_EXCEPTION_KINDS)}) exception: (?P<message>.*)", re.DOTALL
)
_ERROR_POSITION_PATTERN = re.compile(r"\s*\(line: (?P<line>\d+), offset: (?P<offset>\d+)\).*", re.DOTALL)
# Ladybug says how to install what nobody here may install.
_EXTENSION_ADVICE_PATTERN = re.compile(r" This function exists in the \w+ extension\..*", re.DOTALL)
_STATEMENT_TOKEN_PATTERN = re.compile(r"\w+|\S")
_QUOTED_NAME_PATTERN = re.compile(
    r"(?:Variable|function|Function|Table|property|Parameter|parameter) `?(?P<name>\w+)`?"
)
OUT_OF_MEMORY_MESSAGE = (
    "the statement needs more memory than the engine may take; narrow it, or raise KGSERVE_BUFFER_POOL_MB for its page"
    " cache and KGSERVE_ENGINE_MEMORY_MB for all that its process takes"
)


# What the engine and its binding raise over a statement that they cannot run, or values that they cannot read.
STATEMENT_ERRORS = (RuntimeError, TypeError, ValueError, IndexError, OverflowError, SystemError, MemoryError)


def translate_statement(error: Exception, statement: Statement) -> KgserveError:
    """The same for a statement that a caller wrote: what is wrong with it, and where."""
    said = str(error)
    if isinstance(error, MemoryError) or "Buffer manager exception" in said or "bad_alloc" in said:
        return StorageFull(OUT_OF_MEMORY_MESSAGE)
    if "write query inside a read-only transaction" in said:
        return Forbidden("this statement writes, and may only read; send it with mode write")
    fault = _ENGINE_EXCEPTION_PATTERN.match(said)
    if fault is None:
        return _odd(said)
    message = _EXTENSION_ADVICE_PATTERN.sub("", fault["message"]).strip()
    place = _ERROR_POSITION_PATTERN.search(message)
    if place is not None:
        offset = _offset(statement.text, int(place["line"]), int(place["offset"]))
        # The engine names a rule of its grammar and quotes our text, of which the caller knows neither.
        found = _STATEMENT_TOKEN_PATTERN.match(statement.text, offset)
        message = f"syntax error before {found[0]}" if found else "syntax error, something is missing at the end"
    else:
        offset = _of_name(message, statement.text)
    where = "" if offset is None else ", at line {}, column {}".format(*statement.place(offset))
    message = message.rstrip(".") + where + hint(message, statement.text)
    return InvalidInput(f"query: {message}", (FieldError("query", message),))


def _odd(said: str) -> KgserveError:
    """An error without a kind: of the disk or the clock, or else one of the engine's many gaps."""
    known = translate(RuntimeError(said))
    if not isinstance(known, EngineFailed) or said.startswith("IO exception"):
        return known
    log.warning("statement_not_run", error=said[:500])
    message = "the engine cannot run this statement, though nothing forbids it; write it in another way"
    return InvalidInput(f"query: {message}", (FieldError("query", message),))


def _offset(text: str, line: int, column: int) -> int:
    """The place in a text of a line, from 1, and a column, from 0."""
    start = 0
    for _ in range(line - 1):
        start = text.find("\n", start) + 1
    return start + column


def _of_name(message: str, text: str) -> int | None:
    """The place of the name that the message is about, if it stands in the text."""
    named = _QUOTED_NAME_PATTERN.search(message)
    found = re.search(rf"\b{re.escape(named['name'])}\b", text, re.IGNORECASE) if named else None
    return found.start() if found else None


LABEL, RELATION = "Entity", "RELATES_TO"
_ENGINE_TABLES = {LABEL, RELATION, "Elsewhere", "LINKS_TO"}

_LABELS_PATTERN = r"\w*\s*:\s*(?P<names>[\w`]+(?:\s*\|\s*:?\s*[\w`]+)*)"
_NODE_LABELS_PATTERN, _EDGE_LABELS_PATTERN = (
    re.compile(rf"\(\s*{_LABELS_PATTERN}"),
    re.compile(rf"\[\s*{_LABELS_PATTERN}"),
)
_PROPERTY_PATTERN = re.compile(
    r"\b[A-Za-z_]\w*\.(?P<dotted>[A-Za-z_]\w*)\b(?!\s*\()|[{,]\s*(?P<keyed>[A-Za-z_]\w*)\s*:"
)
_STRING_LITERAL_PATTERN = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_MAX_UNKNOWN_NAMES = 5
_MAX_UNKNOWN_NAME_CHARS = 100

_NODE_PROPERTIES, _EDGE_COLUMNS = (tuple(field.name for field in row.whole) for row in (NODE, EDGE))
# Their ends are what the pattern says, and no property of theirs.
_EDGE_PROPERTIES = tuple(name for name in _EDGE_COLUMNS if name not in {"source", "target"})
# Who asks for the name of a node means its id, as long as the store has no names.
_PROPERTIES = {*_NODE_PROPERTIES, *_EDGE_PROPERTIES} - {"name"}
_PROPERTY_SUGGESTIONS = {
    **dict.fromkeys(("name", "title", "lineage_id"), "id"),
    **dict.fromkeys(("kind", "label", "entity_type", "entityType"), "type"),
    **dict.fromkeys(("text", "description", "body"), "content"),
    **dict.fromkeys(("metadata", "properties"), "attributes"),
    **dict.fromkeys(("relationType", "relation", "predicate"), "relation_type"),
}


def hint(message: str, statement: str) -> str:
    """What to write instead, where the engine says that a table or a property is not there; else nothing.

    The engine names the first of them alone; a hint is about all that stand in the statement.
    """
    text = _STRING_LITERAL_PATTERN.sub("''", statement)
    if re.match(r"Table \S+ does not exist", message):
        return "".join([_hint_of_labels(text), _hint_of_properties(text)])
    if message.startswith("Cannot find property"):
        return _hint_of_properties(text) or _there_are()
    return ""


def _hint_of_labels(text: str) -> str:
    nodes, edges = _others(_NODE_LABELS_PATTERN, text), _others(_EDGE_LABELS_PATTERN, text)
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
    return [name for name in found if name not in _ENGINE_TABLES and len(name) <= _MAX_UNKNOWN_NAME_CHARS][
        :_MAX_UNKNOWN_NAMES
    ]


def _hint_of_properties(text: str) -> str:
    found = dict.fromkeys(each["dotted"] or each["keyed"] for each in _PROPERTY_PATTERN.finditer(text))
    unknown = [name for name in found if name not in _PROPERTIES]
    if not unknown:
        return ""
    instead = "".join(
        f"; write {_PROPERTY_SUGGESTIONS[name]} for {name}" for name in unknown if name in _PROPERTY_SUGGESTIONS
    )
    return instead + _there_are()


def _there_are() -> str:
    own = 'WHERE e.attributes CONTAINS \'"status":"open"\''
    fields = f"nodes have {', '.join(_NODE_PROPERTIES)}; edges {', '.join(_EDGE_PROPERTIES)}"
    return f"; {fields}; what is your own is in attributes, which is JSON text: {own}"
