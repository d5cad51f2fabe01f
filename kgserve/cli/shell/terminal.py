"""Interactive shell: a prompt with history, syntax colours and completion."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Literal

import msgspec
from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.lexers import PygmentsLexer
from pygments.lexers.graph import CypherLexer
from typing_extensions import override

from kgserve import __version__
from kgserve.admin.api import StoreStats
from kgserve.cli.shell.commands import SHELL_COMMANDS, CommandStopped, ShellExit, run_script
from kgserve.cli.shell.formats import MODES
from kgserve.cli.shell.script import is_unfinished
from kgserve.cli.shell.session import ShellSession
from kgserve.cypher.completion import (
    COMPLETION_FUNCTIONS,
    COMPLETION_KEYWORDS,
    COMPLETION_PROCEDURES,
    NODE_LABELS,
    PROPERTIES_BY_LABEL,
    RELATION_LABELS,
)
from kgserve.errors import KgserveError

EXIT_WORDS = {"exit", "quit"}
"""Words that leave the shell although commands begin with a colon."""

COMPLETION_CACHE_SECONDS = 10.0
"""Seconds for which a store's types are cached, unless something was written."""

CompletionContext = Literal[
    "command", "help", "store", "mode", "switch", "parameter", "file", "node type", "relation type", "node label",
    "relation label", "node property", "relation property", "property", "procedure", "word", "nothing",
]  # fmt: skip

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

STATEMENT_CONTEXTS: tuple[tuple[CompletionContext, str], ...] = (
    ("parameter", r"\$(\w*)$"),
    ("relation label", r"\[\s*\w*\s*:\s*(?:\w+\s*\|\s*:?)*(\w*)$"),
    ("node label", r"\(\s*\w*\s*:\s*(\w*)$"),
    ("relation property", r"\[[^\][(){}]*\{(?:[^{}]*,)?\s*(\w*)$"),
    ("node property", r"\([^\][(){}]*\{(?:[^{}]*,)?\s*(\w*)$"),
    ("procedure", r"\b(?i:CALL)\s+(\w*)$"),
    ("word", r"\b([A-Za-z_]\w*)$"),
)
"""Completions by the end of a statement's text; the first match applies."""

QUOTED_OR_COMMENT = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|`[^`]*`|//[^\n]*|/\*.*?\*/", re.DOTALL)
TYPE_COMPARISON = re.compile(r"\b(relation_type|type)\s*(?:=|<>|:|\bIN\s*\[[^\]]*?)\s*$", re.IGNORECASE)


def run_prompt_loop(session: ShellSession, history: Path) -> None:
    """Read and execute input until the user leaves. Ctrl-C cancels a statement, or clears the line."""
    session.screen.note(f"kgserve {__version__} at {session.server.url}; `:help` lists the commands")
    prompt = _prompt(session, history)
    while (text := _typed(prompt, session)) is not None and _word(text) not in EXIT_WORDS:
        try:
            run_script(session, text)
        except KeyboardInterrupt:
            session.screen.warn("\n" + _interrupted(session))  # the terminal has shown ^C
        except CommandStopped:  # already reported
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
        lexer=PygmentsLexer(CypherLexer),
        completer=CypherCompleter(CompletionCache(session)),
        complete_in_thread=True,
        complete_while_typing=False,
        multiline=Condition(_is_unfinished),
        prompt_continuation=_continuation,
    )


def _is_unfinished() -> bool:
    text = get_app().current_buffer.text
    return is_unfinished(text) and _word(text) not in EXIT_WORDS


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


def completion_context(before: str) -> tuple[CompletionContext, str]:
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
    compared = TYPE_COMPARISON.search(before) if quoted[0] in "'\"" else None
    if compared is None:
        return "nothing", ""
    return ("relation type" if compared[1].lower() == "relation_type" else "node type"), quoted[1:]


def _in_statement(bare: str) -> tuple[CompletionContext, str]:
    if found := re.search(r"(\w+)\.(\w*)$", bare):
        return _property_of(found[1], bare), found[2]
    for kind, pattern in STATEMENT_CONTEXTS:
        if found := re.search(pattern, bare):
            return kind, found[1]
    return "nothing", ""


def _property_of(variable: str, bare: str) -> CompletionContext:
    if re.search(rf"\[\s*{variable}\b", bare):
        return "relation property"
    return "node property" if re.search(rf"\(\s*{variable}\s*[:){{]", bare) else "property"


class CypherCompleter(Completer):
    """Completer for the text at the cursor. Calls may ask the server, so run it in a thread."""

    def __init__(self, vocabulary: CompletionCache) -> None:
        self._vocabulary = vocabulary
        self._files = PathCompleter(expanduser=True)
        self._offers: dict[CompletionContext, Callable[[], Iterable[str]]] = {
            "command": lambda: SHELL_COMMANDS,
            "help": lambda: SHELL_COMMANDS,
            "store": vocabulary.stores,
            "mode": lambda: MODES,
            "switch": lambda: ("on", "off"),
            "parameter": lambda: sorted(vocabulary.session.parameters),
            "node type": lambda: vocabulary.words().node_types,
            "relation type": lambda: vocabulary.words().relation_types,
            "node label": lambda: NODE_LABELS,
            "relation label": lambda: RELATION_LABELS,
            "node property": lambda: _properties(NODE_LABELS),
            "relation property": lambda: _properties(RELATION_LABELS),
            "property": lambda: _properties(PROPERTIES_BY_LABEL),
            "procedure": lambda: [f"{name}(" for name in COMPLETION_PROCEDURES],
            "word": lambda: (*COMPLETION_KEYWORDS, *(f"{name}(" for name in COMPLETION_FUNCTIONS)),
        }

    @override
    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        kind, begun = completion_context(document.text_before_cursor)
        if kind == "file":
            yield from self._files.get_completions(Document(begun), complete_event)
        elif kind != "nothing":
            for offer in self._offers[kind]():
                if offer.lower().startswith(begun.lower()):
                    yield Completion(offer, start_position=-len(begun), display_meta=kind)


def _properties(labels: Mapping[str, Mapping[str, str]]) -> Iterable[str]:
    """Return the properties of several labels, each once."""
    return dict.fromkeys(chain.from_iterable(labels.values()))


class CompletionWords(msgspec.Struct, frozen=True):
    """Completions specific to a store, most frequent first."""

    node_types: tuple[str, ...] = ()
    relation_types: tuple[str, ...] = ()


class CompletionCache:
    """Cached completions of the session's store. Errors of the server result in no completions."""

    def __init__(self, session: ShellSession) -> None:
        self.session = session
        self._words = CompletionWords()
        self._known: tuple[str | None, int] = (None, -1)
        self._since = 0.0

    def words(self) -> CompletionWords:
        """Return the types of the selected store."""
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

    def _asked(self, store: str | None) -> CompletionWords:
        try:
            server = self.session.server
            return CompletionWords() if store is None or not server.connected else _by_frequency(server.stats(store))
        except KgserveError:
            return CompletionWords()


def _by_frequency(stats: StoreStats) -> CompletionWords:
    def ordered(counts: dict[str, int]) -> tuple[str, ...]:
        return tuple(sorted(counts, key=lambda name: (-counts[name], name)))

    return CompletionWords(ordered(stats.types), ordered(stats.relation_types))
