"""Check that command lines in files could be run: their commands and options exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click

from kgserve.cli.root import kgserve_root_command

ASSIGNMENT = re.compile(r"[A-Z_]+=")


def fault(words: list[str]) -> str | None:
    """Return the fault of ``kgserve``'s arguments, or None."""
    command: click.Command = kgserve_root_command
    rest = list(words)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        if name not in command.commands:
            return None if command.invoke_without_command else f"there is no command {name!r}"
        command = command.commands[name]
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {"-h", "--help"}
    if command is kgserve_root_command:
        known.add("--version")
    for word in rest:
        if word == "--":
            break
        if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in known:
            return f"{command.name} has no option {word}"
    return None


def all_options(command: click.Command = kgserve_root_command) -> set[str]:
    """The options of a command and of those below it."""
    found = {"--help"} | {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    below = command.commands.values() if isinstance(command, click.Group) else ()
    return found.union(*map(all_options, below))


def command_lines(text: str) -> Iterator[list[str]]:
    """The arguments of every command line in shell text that starts with ``kgserve``, whole lines and in pipes.

    Where lines begin with a prompt, the others are what was answered.
    """
    lines = text.replace("\\\n", " ").splitlines()
    for line in [line for line in lines if line.startswith("$ ")] or lines:
        for part in re.split(r"&&|\|\||[|;]| > ", line.removeprefix("$ ")):
            words = _words(part)
            while words and (ASSIGNMENT.match(words[0]) or words[0] in {"exec", "nice", "sudo", "uvx"}):
                words.pop(0)
            if words and words[0].rpartition("/")[2] == "kgserve":
                yield words[1:]


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:  # a quotation that goes over several lines
        return []
