"""The engine's errors, told apart by their text, for it raises RuntimeError for everything."""

from __future__ import annotations

import re

import structlog

from kgserve.cypher.guard import Statement
from kgserve.cypher.hints import hint
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

log = structlog.get_logger()

# First match wins. Texts of kuzu 0.11.3, which are also those of ladybug 0.22.0.
_TABLE: tuple[tuple[str, type[KgserveError], str], ...] = (
    ("Interrupted.", TimedOut, "the query ran into its time limit and was stopped"),
    ("No space left on device", StorageFull, "no room on the disk; free some space and try again"),
    ("Buffer manager exception", Unavailable, "the query needs more memory than the store's page cache has"),
    ("Parser exception", InvalidInput, "the query cannot be parsed"),
    ("Binder exception", InvalidInput, "the query does not fit the schema"),
)


def translate(error: RuntimeError) -> KgserveError:
    """The error of ours that an engine error stands for; EngineFailed for what has no entry."""
    text = str(error)
    for part, kind, message in _TABLE:
        if part in text:
            return kind(message)
    return EngineFailed(f"the engine failed: {text}")


_FAULTS = ("Parser", "Binder", "Catalog", "Conversion", "Overflow", "Runtime")
_FAULT = re.compile(rf"(?:{'|'.join(_FAULTS)}) exception: (?P<message>.*)", re.DOTALL)
_PLACE = re.compile(r"\s*\(line: (?P<line>\d+), offset: (?P<offset>\d+)\).*", re.DOTALL)
# Ladybug says how to install what nobody here may install.
_EXTENSION = re.compile(r" This function exists in the \w+ extension\..*", re.DOTALL)
_WORD = re.compile(r"\w+|\S")
_NAMED = re.compile(r"(?:Variable|function|Function|Table|property|Parameter|parameter) `?(?P<name>\w+)`?")
SPENT = (
    "the statement needs more memory than the engine may take; narrow it, or raise KGSERVE_BUFFER_POOL_MB for its page"
    " cache and KGSERVE_ENGINE_MEMORY_MB for all that its process takes"
)


# What the engine and its binding raise over a statement that they cannot run, or values that they cannot read.
STATEMENT_ERRORS = (RuntimeError, TypeError, ValueError, IndexError, OverflowError, SystemError, MemoryError)


def translate_statement(error: Exception, statement: Statement) -> KgserveError:
    """The same for a statement that a caller wrote: what is wrong with it, and where."""
    said = str(error)
    if isinstance(error, MemoryError) or "Buffer manager exception" in said or "bad_alloc" in said:
        return StorageFull(SPENT)
    if "write query inside a read-only transaction" in said:
        return Forbidden("this statement writes, and may only read; send it with mode write")
    fault = _FAULT.match(said)
    if fault is None:
        return _odd(said)
    message = _EXTENSION.sub("", fault["message"]).strip()
    place = _PLACE.search(message)
    if place is not None:
        offset = _offset(statement.text, int(place["line"]), int(place["offset"]))
        # The engine names a rule of its grammar and quotes our text, of which the caller knows neither.
        found = _WORD.match(statement.text, offset)
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
    named = _NAMED.search(message)
    found = re.search(rf"\b{re.escape(named['name'])}\b", text, re.IGNORECASE) if named else None
    return found.start() if found else None
