"""What may stand at the cursor: decided from the text before it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document

from kgserve.shell.commands import COMMANDS
from kgserve.shell.formats import MODES
from kgserve.shell.schema import LABELS
from kgserve.shell.vocabulary import FUNCTIONS, KEYWORDS, PROCEDURES, Vocabulary

Expected = Literal[
    "command", "help", "store", "mode", "switch", "parameter", "file", "node type", "relation type", "node label",
    "relation label", "node property", "relation property", "property", "procedure", "word", "nothing",
]  # fmt: skip

COMMAND_CONTEXTS: tuple[tuple[Expected, str], ...] = (
    ("command", r":(\w*)$"),
    ("help", r":help\s+:?(\w*)$"),
    ("store", r":use\s+(\S*)$"),
    ("mode", r":mode\s+(\w*)$"),
    ("switch", r":(?:write|timing)\s+(\w*)$"),
    ("parameter", r":set\s+\$?(\w*)$"),
    ("file", r":(?:source|export)\s+(\S*)$"),
)
"""What a line that begins with a colon may go on with."""

CONTEXTS: tuple[tuple[Expected, str], ...] = (
    ("parameter", r"\$(\w*)$"),
    ("relation label", r"\[\s*\w*\s*:\s*(?:\w+\s*\|\s*:?)*(\w*)$"),
    ("node label", r"\(\s*\w*\s*:\s*(\w*)$"),
    ("relation property", r"\[[^\][(){}]*\{(?:[^{}]*,)?\s*(\w*)$"),
    ("node property", r"\([^\][(){}]*\{(?:[^{}]*,)?\s*(\w*)$"),
    ("procedure", r"\b(?i:CALL)\s+(\w*)$"),
    ("word", r"\b([A-Za-z_]\w*)$"),
)
"""What the end of a statement's text may go on with; the first that fits counts."""

QUOTED = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|`[^`]*`|//[^\n]*|/\*.*?\*/", re.DOTALL)
COMPARED = re.compile(r"\b(relation_type|type)\s*(?:=|<>|:|\bIN\s*\[[^\]]*?)\s*$", re.IGNORECASE)


def expected(before: str) -> tuple[Expected, str]:
    """What is expected after a text, and the part of it that is already there."""
    line = before.lstrip()
    if line.startswith(":"):
        for kind, pattern in COMMAND_CONTEXTS:
            if found := re.fullmatch(pattern, line):
                return kind, found[1]
        if not line.startswith(":export"):
            return "nothing", ""
    bare = QUOTED.sub(lambda found: " " * len(found[0]), before)
    if opened := re.search(r"['\"`]|//|/\*", bare):
        return _in_quotes(before[: opened.start()], before[opened.start() :])
    return _in_statement(bare)


def _in_quotes(before: str, quoted: str) -> tuple[Expected, str]:
    compared = COMPARED.search(before) if quoted[0] in "'\"" else None
    if compared is None:
        return "nothing", ""
    return ("relation type" if compared[1].lower() == "relation_type" else "node type"), quoted[1:]


def _in_statement(bare: str) -> tuple[Expected, str]:
    if found := re.search(r"(\w+)\.(\w*)$", bare):
        return _property_of(found[1], bare), found[2]
    for kind, pattern in CONTEXTS:
        if found := re.search(pattern, bare):
            return kind, found[1]
    return "nothing", ""


def _property_of(variable: str, bare: str) -> Expected:
    if re.search(rf"\[\s*{variable}\b", bare):
        return "relation property"
    return "node property" if re.search(rf"\(\s*{variable}\s*[:){{]", bare) else "property"


class CypherCompleter(Completer):
    """Offers what fits at the cursor. It may ask the server, so it belongs into a thread."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._files = PathCompleter(expanduser=True)
        self._offers: dict[Expected, Callable[[], Iterable[str]]] = {
            "command": lambda: COMMANDS,
            "help": lambda: COMMANDS,
            "store": vocabulary.stores,
            "mode": lambda: MODES,
            "switch": lambda: ("on", "off"),
            "parameter": lambda: sorted(vocabulary.session.parameters),
            "node type": lambda: vocabulary.words().node_types,
            "relation type": lambda: vocabulary.words().relation_types,
            "node label": lambda: ("Entity",),
            "relation label": lambda: ("RELATES_TO",),
            "node property": lambda: LABELS["Entity"],
            "relation property": lambda: LABELS["RELATES_TO"],
            "property": lambda: dict.fromkeys([*LABELS["Entity"], *LABELS["RELATES_TO"]]),
            "procedure": lambda: [f"{name}(" for name in PROCEDURES],
            "word": lambda: (*KEYWORDS, *(f"{name}(" for name in FUNCTIONS)),
        }

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """What fits, in the order in which it is offered."""
        kind, begun = expected(document.text_before_cursor)
        if kind == "file":
            yield from self._files.get_completions(Document(begun), complete_event)
        elif kind != "nothing":
            for offer in self._offers[kind]():
                if offer.lower().startswith(begun.lower()):
                    yield Completion(offer, start_position=-len(begun), display_meta=kind)
