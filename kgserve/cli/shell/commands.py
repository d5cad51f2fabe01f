"""Commands of the shell, each documented by its docstring, and the execution of input."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from kgserve.cli.exit_codes import EXIT_FAILED, EXIT_NO_SERVER
from kgserve.cli.shell.cypher_script_splitter import StatementOrCommand, split_cypher_script
from kgserve.cli.shell.formats import MODES, Mode
from kgserve.cli.shell.session import NoServerAvailable, ShellSession
from kgserve.cypher.completion import PROPERTIES_BY_LABEL
from kgserve.errors import InvalidInput, KgserveError
from kgserve.graph.answers import CypherAnswer
from kgserve.platform.codecs import decode_json

MAX_SOURCE_DEPTH = 16
"""Maximum nesting of `:source` files."""


class ShellCommand(msgspec.Struct, frozen=True):
    """A shell command: its name, the placeholder of its arguments, a one-sentence summary, and further details."""

    name: str
    arguments: str
    summary: str
    details: str
    run: Callable[[ShellSession, str], None]

    @property
    def usage(self) -> str:
        """Usage line."""
        return f":{self.name} {self.arguments}".rstrip()


class ShellExit(Exception):
    """The user left the shell."""


class ShellCommandFailed(Exception):
    """A statement or command failed and was reported. ``code`` is the exit code of a script."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


SHELL_COMMANDS: dict[str, ShellCommand] = {}


def run_cypher_script(session: ShellSession, text: str, source: str | None = None) -> None:
    """Execute all statements and commands of a text.

    Raises ShellCommandFailed after reporting the first failure, and ShellExit when the user leaves.
    """
    for entry in split_cypher_script(text):
        try:
            execute_statement_or_command(session, entry)
        except KgserveError as error:
            session.screen.fail(error, entry, source)
            raise ShellCommandFailed(EXIT_NO_SERVER if isinstance(error, NoServerAvailable) else EXIT_FAILED) from error


def execute_statement_or_command(session: ShellSession, entry: StatementOrCommand) -> None:
    """Execute one statement or command. Raises KgserveError, ShellExit, and ShellCommandFailed from a sourced file."""
    if not entry.text.startswith(":"):
        session.statement(entry.text)
        return
    name, rest = _parts(entry.text)
    command = _find_command(name)
    if rest and not command.arguments:
        raise InvalidInput(f"`:{name}` takes no arguments, but got {rest!r}")
    command.run(session, rest)


def _command(
    arguments: str = "",
) -> Callable[[Callable[[ShellSession, str], None]], Callable[[ShellSession, str], None]]:
    def add(function: Callable[[ShellSession, str], None]) -> Callable[[ShellSession, str], None]:
        name = function.__name__.strip("_")
        summary, _, details = (function.__doc__ or "").partition("\n\n")
        SHELL_COMMANDS[name] = ShellCommand(name, arguments, summary, re.sub(r"\s+", " ", details).strip(), function)
        return function

    return add


@_command("[COMMAND]")
def _help(session: ShellSession, rest: str) -> None:
    """List the commands, or explain one."""
    if rest:
        command = _find_command(rest.lstrip(":"))
        session.screen.tell("\n".join(filter(None, [command.usage, f"  {command.summary}", _indented(command)])))
        return
    width = max(len(command.usage) for command in SHELL_COMMANDS.values())
    lines = [f"{command.usage:<{width}}  {command.summary}" for command in SHELL_COMMANDS.values()]
    session.screen.tell("\n".join([*lines, "", "Everything else is Cypher and ends with a semicolon."]))


@_command("[STORE]")
def _use(session: ShellSession, rest: str) -> None:
    """Select the store for statements, or show the selected one."""
    say = session.screen.note if rest else session.screen.tell
    session.store = rest or session.store
    say(f"statements use {session.chosen_store()}")


@_command()
def _stores(session: ShellSession, _: str) -> None:
    """List the stores of the server."""
    found = session.server.stores()
    rows = [[each.name, each.state, each.nodes, each.edges, each.sequence] for each in found]
    _show(session, ["name", "state", "nodes", "relations", "sequence"], rows)


@_command()
def _schema(session: ShellSession, _: str) -> None:
    """Show labels, properties, and the node and relation types of the store with counts."""
    stats = session.server.stats(session.chosen_store())
    rows, counts = list[list[Any]](), {"Entity": stats.nodes, "RELATES_TO": stats.edges}
    for label, properties in PROPERTIES_BY_LABEL.items():
        rows.append(["label", label, None, counts.get(label)])
        rows += [["property", f"{label}.{name}", kind, None] for name, kind in properties.items()]
    rows += [["node type", name, None, count] for name, count in stats.types.items()]
    rows += [["relation type", name, None, count] for name, count in stats.relation_types.items()]
    _show(session, ["what", "name", "type", "count"], rows)


@_command()
def _params(session: ShellSession, _: str) -> None:
    """List the parameters, which statements use as $name."""
    _show(
        session,
        ["parameter", "value"],
        [[name, _parameter_text(session, value)] for name, value in session.parameters.items()],
    )


@_command("[NAME [VALUE]]")
def _set(session: ShellSession, rest: str) -> None:
    """Set a parameter to a JSON value, or list settings and parameters.

    Without a value, the parameter is removed. Example: `:set start "req-login"` for `MATCH (n:Entity {id: $start}) …`.
    """
    if not rest:
        _show(session, ["setting", "value"], _settings(session))
        return
    name, *value = rest.split(maxsplit=1)
    name = name.removeprefix("$")
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise InvalidInput(f"{name!r} is not a parameter name; use letters, digits and _")
    if value:
        session.parameters[name] = _json(value[0])
    else:
        session.parameters.pop(name, None)


@_command("[on|off]")
def _timing(session: ShellSession, rest: str) -> None:
    """Show the duration of each statement, or stop showing it."""
    session.timing = _switch(session, "timing", rest, now=session.timing)


@_command("[table|json|csv|jsonl]")
def _mode(session: ShellSession, rest: str) -> None:
    """Choose the output format of rows, or show the current one.

    `table` draws a table on a terminal, and writes tab-separated lines to a pipe. `json` writes one array per
    statement, `jsonl` one object per row. Only tables on a terminal shorten long values.
    """
    say = session.screen.note if rest else session.screen.tell
    session.mode = _one_of_modes(rest) if rest else session.mode
    say(f"output format: {session.mode}")


@_command("[on|off]")
def _write(session: ShellSession, rest: str) -> None:
    """Allow statements to change the store, or only to read it."""
    session.write = _switch(session, "write", rest, now=session.write)


@_command("FILE")
def _source(session: ShellSession, rest: str) -> None:
    """Run a file of statements and commands. Stops at the first failure."""
    if not rest:
        raise InvalidInput("`:source` requires a file name")
    if session.depth >= MAX_SOURCE_DEPTH:
        raise InvalidInput(f"{rest}: sourced files are nested more than {MAX_SOURCE_DEPTH} deep")
    text = read_cypher_script_file(Path(rest).expanduser())
    session.depth += 1
    try:
        run_cypher_script(session, text, rest)
    finally:
        session.depth -= 1


@_command("FILE QUERY;")
def _export(session: ShellSession, rest: str) -> None:
    """Write the rows of a statement to a file. The file name's extension selects the format: .csv, .json or .jsonl.

    Put a name with spaces in double quotes. An existing file is replaced once all rows have arrived. At most 100,000
    rows are written.
    """
    found = re.fullmatch(r'(?:"([^"]+)"|(\S+))\s+(.+)', rest, re.DOTALL)
    if not found:
        raise InvalidInput("`:export FILE QUERY;` requires a file name and a statement")
    try:
        session.export(found[3].strip(), Path(found[1] or found[2]).expanduser())
    except OSError as error:
        raise InvalidInput(f"{found[1] or found[2]} cannot be written: {error.strerror}") from error


@_command()
def _quit(_: ShellSession, __: str) -> None:
    """Leave the shell; so does Ctrl-D."""
    raise ShellExit


def read_cypher_script_file(path: Path) -> str:
    """Return the text of a script; ``-`` is standard input. Raises InvalidInput when it cannot be read."""
    try:
        data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8 text: invalid byte at offset {error.start}") from error


def _find_command(name: str) -> ShellCommand:
    try:
        return SHELL_COMMANDS[name]
    except KeyError:
        raise InvalidInput(f"unknown command :{name}; `:help` lists the commands") from None


def _parts(text: str) -> tuple[str, str]:
    """Split a command line into the command's name and its arguments."""
    found = re.match(r":(\w*)\s*", text)
    end = found.end() if found else 0
    return (found[1] if found else ""), text[end:].removesuffix(";").strip()


def _indented(command: ShellCommand) -> str:
    return f"  {command.details}" if command.details else ""


def _show(session: ShellSession, columns: list[str], rows: Iterable[list[Any]]) -> None:
    listed = list(rows)
    answer = CypherAnswer(columns=columns, types=[], rows=listed, row_count=len(listed), truncated=False, took_ms=0.0)
    session.screen.show(answer, session.mode)


def _settings(session: ShellSession) -> list[list[Any]]:
    settings = {
        "server": session.server.url,
        "store": session.store,
        "mode": session.mode,
        "write": "on" if session.write else "off",
        "timing": "on" if session.timing else "off",
    }
    parameters = {f"${name}": _parameter_text(session, value) for name, value in session.parameters.items()}
    return [[name, value] for name, value in (settings | parameters).items()]


def _parameter_text(session: ShellSession, value: Any) -> Any:
    """Return a parameter's value as JSON in tables, which distinguishes "1" from 1."""
    return msgspec.json.encode(value).decode() if session.mode == "table" else value


def _json(text: str) -> Any:
    try:
        return decode_json(text)
    except msgspec.DecodeError as error:
        raise InvalidInput(f"{text} is not a JSON value ({error}); put text in double quotes") from error


def _switch(session: ShellSession, name: str, rest: str, *, now: bool) -> bool:
    if rest not in {"", "on", "off"}:
        raise InvalidInput(f"`:{name}` must be on or off, not {rest!r}")
    chosen = rest == "on" if rest else now
    (session.screen.note if rest else session.screen.tell)(f"{name} is {'on' if chosen else 'off'}")
    return chosen


def _one_of_modes(name: str) -> Mode:
    if name not in MODES:
        raise InvalidInput(f"unknown mode {name!r}. Modes: {', '.join(MODES)}")
    return name
