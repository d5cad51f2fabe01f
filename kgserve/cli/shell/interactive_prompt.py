"""Interactive prompt of the shell, with history, syntax colours and completion."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Literal

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from typing_extensions import override

from kgserve import __version__
from kgserve.cli.shell.commands import SHELL_COMMANDS, ShellCommandFailed, ShellExit, run_cypher_script
from kgserve.cli.shell.cypher_script_splitter import is_last_statement_unfinished
from kgserve.cli.shell.formats import MODES
from kgserve.cli.shell.session import ShellSession
from kgserve.cli.shell.syntax_highlighter import CypherPromptHighlighter
from kgserve.cypher.completion import (
    COMPLETION_FUNCTIONS,
    COMPLETION_KEYWORDS,
    COMPLETION_PROCEDURES,
    NODE_LABELS,
    RELATION_LABELS,
    quote_cypher_identifier,
)
from kgserve.errors import KgserveError
from kgserve.graph.answers import StoreCypherVocabulary

EXIT_WORDS = {"exit", "quit"}
"""Words that leave the shell although commands begin with a colon."""

COMPLETION_CACHE_SECONDS = 10.0
"""Seconds for which a store's words are cached, unless something was written."""

CompletionContext = Literal[
    "command", "help", "store", "mode", "switch", "parameter", "file", "node type", "relation type", "node label",
    "relation label", "node property", "relation property", "property", "procedure", "word", "nothing",
]  # fmt: skip

FUNCTION_NAMESPACES = tuple(sorted({name.partition(".")[0] for name in COMPLETION_FUNCTIONS if "." in name}))
"""Words that a dot and the rest of a function's name follow."""

COMMAND_CONTEXTS: tuple[tuple[CompletionContext, str], ...] = (
    ("command", r":(\w*)$"),
    ("help", r":help\s+:?(\w*)$"),
    ("store", r":use\s+(\S*)$"),
    ("mode", r":mode\s+(\w*)$"),
    ("switch", r":(?:write|timing)\s+(\w*)$"),
    ("parameter", r":set\s+\$?(\w*)$"),
    ("file", r":(?:source|export)\s+(\S*)$"),
)
"""Completions of a line that begins with a colon, by the text before the cursor."""

_NAMES_BEFORE = r"(?:[\w\s]*[|&]\s*:?)*\s*"
STATEMENT_CONTEXTS: tuple[tuple[CompletionContext, str], ...] = (
    ("parameter", r"\$(\w*)$"),
    ("procedure", r"\b(?i:CALL)\s+([A-Za-z_]\w*(?:\.\w*)*|)$"),
    ("word", rf"(?<![.\w])((?i:{'|'.join(FUNCTION_NAMESPACES)})\.\w*)$"),
    ("property", r"([^\W\d]\w*)\.(\w*)$"),
    ("relation label", rf"-\[\s*\w*\s*:{_NAMES_BEFORE}(\w*)$"),
    ("node label", rf"\(\s*\w*\s*:{_NAMES_BEFORE}(\w*)$"),
    ("relation property", r"-\[[^\][(){}]*\{(?:[^{}]*,)?\s*(\w*)$"),
    ("node property", r"\([^\][(){}]*\{(?:[^{}]*,)?\s*(\w*)$"),
    ("node label", r"\b(?i:AND|NOT|OR|REMOVE|SET|WHEN|WHERE|XOR)\s+[^\W\d]\w*:(\w*)$"),
    ("word", r"\b([^\W\d]\w*)$"),
)
"""Completions by the end of a statement's text; the first match applies."""

PROPERTY_CONTEXTS = frozenset[CompletionContext]({"node property", "relation property", "property"})
NAME_CONTEXTS = PROPERTY_CONTEXTS | {"node label", "relation label"}
"""Contexts of names that are written in backticks unless they are plain words."""
_NAME = r"(?:(\w+)|`([^`]+)`)"

QUOTED_OR_COMMENT = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|`[^`]*`|//[^\n]*|/\*.*?\*/", re.DOTALL)
TYPE_COMPARISON = re.compile(r"\b(relation_type|type)\s*(?:=|<>|:|\bIN\s*\[[^\]]*?)\s*$", re.IGNORECASE)


def run_prompt_loop(session: ShellSession, history: Path) -> None:
    """Read and execute input until the user leaves. Ctrl-C cancels a statement, or clears the line."""
    session.screen.note(f"kgserve {__version__} at {session.server.url}; `:help` lists the commands")
    prompt = _prompt(session, history)
    while (text := _typed(prompt, session)) is not None and _word(text) not in EXIT_WORDS:
        try:
            run_cypher_script(session, text)
        except KeyboardInterrupt:
            session.screen.warn("\n" + _interrupted(session))  # the terminal has shown ^C
        except ShellCommandFailed:  # already reported
            continue
        except ShellExit:
            return


def _typed(prompt: PromptSession[str], session: ShellSession) -> str | None:
    """Return the next input; None at its end."""
    while True:
        try:
            return prompt.prompt(lambda: _marker(session))
        except KeyboardInterrupt:
            continue
        except EOFError:
            return None


def _prompt(session: ShellSession, history: Path) -> PromptSession[str]:
    return PromptSession(
        history=_open_history(history),
        lexer=CypherPromptHighlighter(),
        completer=CypherCompleter(ShellCompletionCache(session)),
        complete_in_thread=True,
        complete_while_typing=False,
        multiline=Condition(_is_unfinished),
        prompt_continuation=_continuation,
    )


def _is_unfinished() -> bool:
    text = get_app().current_buffer.text
    return is_last_statement_unfinished(text) and _word(text) not in EXIT_WORDS


def _word(text: str) -> str:
    return text.strip().removesuffix(";").strip().lower()


def _marker(session: ShellSession) -> StyleAndTextTuples:
    writing: StyleAndTextTuples = [("ansired", " write")] if session.write else []
    return [("bold", session.store or "kgserve"), *writing, ("", "> ")]


def _continuation(width: int, _line: int, wrap_count: int) -> str:
    return " " * width if wrap_count else f"{'…':>{max(width - 1, 1)}} "


def _open_history(file: Path) -> History:
    """Return a history file that only its owner can read; an in-memory history if it cannot be opened."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.fchmod(descriptor, 0o600)
        os.close(descriptor)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(file))


def _interrupted(session: ShellSession) -> str:
    return "interrupted; the statement may have been executed nevertheless" if session.write else "interrupted"


def find_completion_context(before: str) -> tuple[CompletionContext, str]:
    """Return the kind of completion expected after a text, and the part of it that is already typed."""
    line = before.lstrip()
    if line.startswith(":"):
        for kind, pattern in COMMAND_CONTEXTS:
            if found := re.fullmatch(pattern, line):
                return kind, found[1]
        if not line.startswith(":export"):
            return "nothing", ""
    bare = QUOTED_OR_COMMENT.sub(lambda found: " " * len(found[0]), before)
    if opened := re.search(r"['\"`]|//|/\*", bare):
        return _in_quotes(before[: opened.start()], before[opened.start() :])
    return _in_statement(bare)


def _in_quotes(before: str, quoted: str) -> tuple[CompletionContext, str]:
    if quoted[0] == "`":
        kind, _ = _in_statement(before)
        return (kind, quoted) if kind in NAME_CONTEXTS else ("nothing", "")
    compared = TYPE_COMPARISON.search(before) if quoted[0] in "'\"" else None
    if compared is None:
        return "nothing", ""
    return ("relation type" if compared[1].lower() == "relation_type" else "node type"), quoted[1:]


def _in_statement(bare: str) -> tuple[CompletionContext, str]:
    for kind, pattern in STATEMENT_CONTEXTS:
        if found := re.search(pattern, bare):
            return _property_of(found[1], bare) if kind == "property" else kind, found[found.lastindex or 0]
    return "nothing", ""


def _property_of(variable: str, bare: str) -> CompletionContext:
    if re.search(rf"-\[\s*{variable}\b", bare):
        return "relation property"
    return "node property" if re.search(rf"\(\s*{variable}\s*[:){{]", bare) else "property"


def find_type_of_property_being_typed(before: str) -> str | None:
    """Return the label or relation type of the element whose property is typed; None if it is not known."""
    if found := re.search(r"([^\W\d]\w*)\.[\w`]*$", before):
        declared = re.search(rf"[(\[]\s*{found[1]}\s*:\s*{_NAME}", before)
    else:
        declared = re.search(rf"[(\[]\s*\w*\s*:\s*{_NAME}[^()\[\]{{}}]*\{{[^{{}}]*$", before)
    return declared and (declared[1] or declared[2])


class CypherCompleter(Completer):
    """Completer for the text at the cursor. Calls may ask the server, so run it in a thread."""

    def __init__(self, vocabulary: ShellCompletionCache) -> None:
        self._vocabulary = vocabulary
        self._files = PathCompleter(expanduser=True)
        self._offers: dict[CompletionContext, Callable[[], Iterable[str]]] = {
            "command": lambda: SHELL_COMMANDS,
            "help": lambda: SHELL_COMMANDS,
            "store": vocabulary.stores,
            "mode": lambda: MODES,
            "switch": lambda: ("on", "off"),
            "parameter": lambda: sorted(vocabulary.session.parameters),
            "node type": lambda: vocabulary.words().labels,
            "relation type": lambda: vocabulary.words().relation_types,
            "node label": lambda: (*vocabulary.words().labels, *NODE_LABELS),
            "relation label": lambda: (*vocabulary.words().relation_types, *RELATION_LABELS),
            "procedure": lambda: [f"{name}(" for name in COMPLETION_PROCEDURES],
            "word": lambda: (*COMPLETION_KEYWORDS, *(f"{name}(" for name in COMPLETION_FUNCTIONS)),
        }

    @override
    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        before = document.text_before_cursor
        kind, begun = find_completion_context(before)
        if kind == "file":
            yield from self._files.get_completions(Document(begun), complete_event)
        elif kind != "nothing":
            prefix = begun.removeprefix("`") if kind in NAME_CONTEXTS else begun
            for offer in dict.fromkeys(self._list_offers(kind, before)):
                if offer.lower().startswith(prefix.lower()):
                    text = quote_cypher_identifier(offer) if kind in NAME_CONTEXTS else offer
                    yield Completion(text, start_position=-len(begun), display_meta=kind)

    def _list_offers(self, kind: CompletionContext, before: str) -> Iterable[str]:
        if kind not in PROPERTY_CONTEXTS:
            return self._offers[kind]()
        words, type_ = self._vocabulary.words(), find_type_of_property_being_typed(before)
        nodes = () if kind == "relation property" else _list_properties(words.labels, NODE_LABELS, type_)
        relations = () if kind == "node property" else _list_properties(words.relation_types, RELATION_LABELS, type_)
        return (*nodes, *relations)


def _list_properties(
    attributes: Mapping[str, Iterable[str]], columns: Mapping[str, Iterable[str]], type_: str | None
) -> Iterator[str]:
    """Yield the attributes and columns of rows with a type; those of all rows if the type is not in use."""
    if type_ is not None and type_ in attributes:
        yield from attributes[type_]
        yield from next(iter(columns.values()))
    else:
        yield from chain.from_iterable((*attributes.values(), *columns.values()))


NO_WORDS = StoreCypherVocabulary(
    keywords=[], functions=[], procedures=[], labels={}, relation_types={}, node_properties=[], relation_properties=[]
)


class ShellCompletionCache:
    """Cached completions of the session's store. Errors of the server result in no completions."""

    def __init__(self, session: ShellSession) -> None:
        self.session = session
        self._words = NO_WORDS
        self._known: tuple[str | None, int] = (None, -1)
        self._since = 0.0

    def words(self) -> StoreCypherVocabulary:
        """Return the labels, relationship types and attributes of the selected store."""
        wanted = (self.session.store, self.session.writes)
        if wanted != self._known or time.monotonic() - self._since > COMPLETION_CACHE_SECONDS:
            self._words = self._asked(self.session.store)
            self._known, self._since = wanted, time.monotonic()
        return self._words

    def stores(self) -> list[str]:
        """Return the names of the server's stores."""
        try:
            server = self.session.server
            return [each.name for each in server.stores()] if server.connected else []
        except KgserveError:
            return []

    def _asked(self, store: str | None) -> StoreCypherVocabulary:
        try:
            server = self.session.server
            return NO_WORDS if store is None or not server.connected else server.words(store)
        except KgserveError:
            return NO_WORDS
