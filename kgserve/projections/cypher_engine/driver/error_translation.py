"""Translation of engine errors by their text, because the engine raises RuntimeError for everything."""

from __future__ import annotations

import re

import structlog

from kgserve.cypher.guard import GuardedCypherStatement
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
from kgserve.storage.model.node_edge_fields import EDGE, NODE

log = structlog.get_logger()

# First match wins. Message texts of kuzu 0.11.3, identical in ladybug 0.20.4.
_ERRORS_BY_ENGINE_TEXT: tuple[tuple[str, type[KgserveError], str], ...] = (
    ("Interrupted.", TimedOut, "the query ran into its time limit and was stopped"),
    ("No space left on device", StorageFull, "the disk is full; free some space and try again"),
    ("Buffer manager exception", Unavailable, "the query needs more memory than the store's page cache"),
    ("Parser exception", InvalidInput, "the query cannot be parsed"),
    ("Binder exception", InvalidInput, "the query does not fit the schema"),
)


def translate_engine_error(error: RuntimeError) -> KgserveError:
    """Return the kgserve error for an engine error; EngineFailed if no pattern matches."""
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
# Ladybug suggests installing extensions, which users of the server cannot do.
_EXTENSION_ADVICE_PATTERN = re.compile(r" This function exists in the \w+ extension\..*", re.DOTALL)
_STATEMENT_TOKEN_PATTERN = re.compile(r"\w+|\S")
_QUOTED_NAME_PATTERN = re.compile(
    r"(?:Variable|function|Function|Table|property|Parameter|parameter) `?(?P<name>\w+)`?"
)
# Messages whose words name internals of the engine, and what to say instead.
_REWORDED_MESSAGES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.DOTALL), message)
    for pattern, message in (
        (
            r"Found duplicated primary key value (.*), which violates.*",
            r"a node with the id '\1' exists already; MERGE it by its id alone, and SET its other properties",
        ),
        (
            r"Node\(nodeOffset: \d+\) has connected edges.*",
            "a node to delete has connected edges: delete them first, or use DETACH DELETE",
        ),
        (
            r"Cannot set property id in table .*",
            "the id of a node cannot change; create another node with the new id",
        ),
        (r"Create node \w* *expects primary key id as input", r"the node to create needs an id: write {id: …}"),
        (
            r"Cannot delete expression (.*) with type \w+\. Expect node or rel pattern",
            r"DELETE expects nodes, relationships and paths, not \1",
        ),
    )
)
OUT_OF_MEMORY_MESSAGE = (
    "the statement exceeds the engine's memory limit; narrow it, or raise KGSERVE_BUFFER_POOL_MB (page cache) and"
    " KGSERVE_ENGINE_MEMORY_MB (whole process)"
)


# Exceptions raised by the engine and its binding for statements or values they cannot process.
STATEMENT_ERRORS = (RuntimeError, TypeError, ValueError, IndexError, OverflowError, SystemError, MemoryError)


def translate_statement_error(error: Exception, statement: GuardedCypherStatement) -> KgserveError:
    """Return the kgserve error for a caller's statement, with what is wrong and its position."""
    error_text = str(error)
    if isinstance(error, MemoryError) or "Buffer manager exception" in error_text or "bad_alloc" in error_text:
        return StorageFull(OUT_OF_MEMORY_MESSAGE)
    if "write query inside a read-only transaction" in error_text:
        return Forbidden("this statement writes data, but the mode is read; send it with mode write")
    fault = _ENGINE_EXCEPTION_PATTERN.match(error_text)
    if fault is None:
        return _translate_unclassified(error_text)
    message = _EXTENSION_ADVICE_PATTERN.sub("", fault["message"]).strip()
    place = _ERROR_POSITION_PATTERN.search(message)
    if place is not None:
        offset = _offset(statement.text, int(place["line"]), int(place["offset"]))
        # The engine's message names grammar rules and quotes the rewritten text, which callers do not know.
        found = _STATEMENT_TOKEN_PATTERN.match(statement.text, offset)
        message = f"syntax error before {found[0]}" if found else "syntax error, something is missing at the end"
    else:
        offset = _offset_of_name(message, statement.text)
    where = "" if offset is None else ", at line {}, column {}".format(*statement.place(offset))
    for pattern, reworded in _REWORDED_MESSAGES:
        message = pattern.sub(reworded, message)
    message = message.rstrip(".") + where + hint_for_unknown_schema_names(message, statement.text)
    return InvalidInput(f"query: {message}", (FieldError("query", message),))


def _translate_unclassified(error_text: str) -> KgserveError:
    """Return the error for an unclassified engine message: a disk or time limit error, or an engine defect."""
    known = translate_engine_error(RuntimeError(error_text))
    if not isinstance(known, EngineFailed) or error_text.startswith("IO exception"):
        return known
    log.warning("statement_not_run", error=error_text[:500])
    message = "the engine failed to run this statement although it is valid; rephrase it"
    return InvalidInput(f"query: {message}", (FieldError("query", message),))


def _offset(text: str, line: int, column: int) -> int:
    """Return the offset in ``text`` of a line (from 1) and a column (from 0)."""
    start = 0
    for _ in range(line - 1):
        start = text.find("\n", start) + 1
    return start + column


def _offset_of_name(message: str, text: str) -> int | None:
    """Return the offset of the name quoted by ``message``, or None if it does not occur in ``text``."""
    named = _QUOTED_NAME_PATTERN.search(message)
    found = re.search(rf"\b{re.escape(named['name'])}\b", text, re.IGNORECASE) if named else None
    return found.start() if found else None


NODE_LABEL, EDGE_LABEL = "Entity", "RELATES_TO"
_ENGINE_TABLES = {NODE_LABEL, EDGE_LABEL, "Elsewhere", "LINKS_TO"}

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
# Endpoints come from the pattern; they are not properties.
_EDGE_PROPERTIES = tuple(name for name in _EDGE_COLUMNS if name not in {"source", "target"})
# Nodes have no `name` by default; queries for it usually mean `id`.
_PROPERTIES = {*_NODE_PROPERTIES, *_EDGE_PROPERTIES} - {"name"}
_PROPERTY_SUGGESTIONS = {
    **dict.fromkeys(("name", "title", "lineage_id"), "id"),
    **dict.fromkeys(("kind", "label", "entity_type", "entityType"), "type"),
    **dict.fromkeys(("text", "description", "body"), "content"),
    **dict.fromkeys(("metadata", "properties"), "attributes"),
    **dict.fromkeys(("relationType", "relation", "predicate"), "relation_type"),
}


def hint_for_unknown_schema_names(message: str, statement: str) -> str:
    """Return a hint for unknown tables or properties in the statement; an empty string for other errors.

    The engine reports only the first unknown name; the hint covers all of them.
    """
    text = _STRING_LITERAL_PATTERN.sub("''", statement)
    if re.match(r"Table \S+ does not exist", message):
        return "".join([_hint_of_labels(text), _hint_of_properties(text)])
    if message.startswith("Cannot find property"):
        return _hint_of_properties(text) or _available_properties()
    return ""


def _hint_of_labels(text: str) -> str:
    nodes, edges = _unknown_labels(_NODE_LABELS_PATTERN, text), _unknown_labels(_EDGE_LABELS_PATTERN, text)
    suggestions = [
        *(_label_suggestion(NODE_LABEL, name, "type") for name in nodes),
        *(_label_suggestion(EDGE_LABEL, name, "relation_type") for name in edges),
    ]
    return (
        f"; the engine's own functions work with :{NODE_LABEL} and :{EDGE_LABEL} only: {', '.join(suggestions)}"
        if suggestions
        else ""
    )


def _label_suggestion(known: str, name: str, field: str) -> str:
    return f"replace :{name} by :{known} and {field} = '{name.replace('`', '')}'"


def _unknown_labels(pattern: re.Pattern[str], text: str) -> list[str]:
    """Return the distinct unknown labels or relation types used in patterns."""
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
    return instead + _available_properties()


def _available_properties() -> str:
    fields = f"nodes have {', '.join(_NODE_PROPERTIES)}; edges {', '.join(_EDGE_PROPERTIES)}"
    return f"; {fields}; attributes are properties where no function of the engine is used"
