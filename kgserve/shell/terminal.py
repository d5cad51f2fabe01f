"""The shell on a terminal: a prompt with history, colours and completion."""

from __future__ import annotations

import os
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.lexers import PygmentsLexer
from pygments.lexers.graph import CypherLexer

from kgserve import __version__
from kgserve.shell.commands import Left, Stopped, run
from kgserve.shell.completion import CypherCompleter
from kgserve.shell.script import unfinished
from kgserve.shell.session import Session
from kgserve.shell.vocabulary import Vocabulary

LEAVING = {"exit", "quit"}
"""Words that people type to leave, though commands begin with a colon."""


def converse(session: Session, history: Path) -> None:
    """Read and carry out what is typed until somebody leaves. Ctrl-C ends a statement, or clears the line."""
    session.screen.note(f"kgserve {__version__} at {session.server.url}; `:help` lists the commands")
    prompt = _prompt(session, history)
    while (text := _typed(prompt, session)) is not None and _word(text) not in LEAVING:
        try:
            run(session, text)
        except KeyboardInterrupt:
            session.screen.warn("\n" + _interrupted(session))  # the terminal has shown ^C
        except Stopped:  # it has been reported
            continue
        except Left:
            return


def _typed(prompt: PromptSession[str], session: Session) -> str | None:
    """The next input, None when there will be none."""
    while True:
        try:
            return prompt.prompt(lambda: _marker(session))
        except KeyboardInterrupt:
            continue
        except EOFError:
            return None


def _prompt(session: Session, history: Path) -> PromptSession[str]:
    return PromptSession(
        history=_kept(history),
        lexer=PygmentsLexer(CypherLexer),
        completer=CypherCompleter(Vocabulary(session)),
        complete_in_thread=True,
        complete_while_typing=False,
        multiline=Condition(_more_must_follow),
        prompt_continuation=_continuation,
    )


def _more_must_follow() -> bool:
    text = get_app().current_buffer.text
    return unfinished(text) and _word(text) not in LEAVING


def _word(text: str) -> str:
    return text.strip().removesuffix(";").strip().lower()


def _marker(session: Session) -> StyleAndTextTuples:
    writing: StyleAndTextTuples = [("ansired", " write")] if session.write else []
    return [("bold", session.store or "kgserve"), *writing, ("", "> ")]


def _continuation(width: int, _line: int, wrap_count: int) -> str:
    return " " * width if wrap_count else f"{'…':>{max(width - 1, 1)}} "


def _kept(file: Path) -> History:
    """The history in a file that only its owner can read; in memory where that cannot be had."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.fchmod(descriptor, 0o600)
        os.close(descriptor)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(file))


def _interrupted(session: Session) -> str:
    return "interrupted; it may have been carried out all the same" if session.write else "interrupted"
