"""The commands of the shell, each documented by its docstring, and the running of what somebody typed."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from kgserve.cli.exit_codes import EXIT_FAILED, EXIT_NO_SERVER
from kgserve.cli.shell.formats import MODES, Mode
from kgserve.cli.shell.script import ScriptEntry, entries
from kgserve.cli.shell.session import NoServer, ShellSession
from kgserve.cypher.offers import LABELS
from kgserve.errors import InvalidInput, KgserveError
from kgserve.graph.answers import CypherAnswer
from kgserve.platform.codecs import decode_json

MAX_SOURCE_DEPTH = 16
"""Files that may source one another."""


class Command(msgspec.Struct, frozen=True):
    """A command, what follows its name, one sentence on what it does, and what else there is to know."""

    name: str
    arguments: str
    summary: str
    details: str
    run: Callable[[ShellSession, str], None]

    @property
    def usage(self) -> str:
        """How it is typed."""
        return f":{self.name} {self.arguments}".rstrip()


class Left(Exception):
    """Somebody asked to leave the shell."""


class CommandStopped(Exception):
    """Something failed and has been reported; ``code`` is the exit code for a script."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


SHELL_COMMANDS: dict[str, Command] = {}


def run(session: ShellSession, text: str, source: str | None = None) -> None:
    """Carry out everything in a text. Raises Stopped at the first failure, once that is reported, and Left."""
    for entry in entries(text):
        try:
            carry_out(session, entry)
        except KgserveError as error:
            session.screen.fail(error, entry, source)
            raise CommandStopped(EXIT_NO_SERVER if isinstance(error, NoServer) else EXIT_FAILED) from error


def carry_out(session: ShellSession, entry: ScriptEntry) -> None:
    """Carry out one statement or command. Raises errors of kgserve, Left, and Stopped from within a file."""
    if not entry.text.startswith(":"):
        session.statement(entry.text)
        return
    name, rest = _parts(entry.text)
    command = _known(name)
    if rest and not command.arguments:
        raise InvalidInput(f"`:{name}` stands alone, without {rest!r}")
    command.run(session, rest)


def _command(
    arguments: str = "",
) -> Callable[[Callable[[ShellSession, str], None]], Callable[[ShellSession, str], None]]:
    def add(function: Callable[[ShellSession, str], None]) -> Callable[[ShellSession, str], None]:
        name = function.__name__.strip("_")
        summary, _, details = (function.__doc__ or "").partition("\n\n")
        SHELL_COMMANDS[name] = Command(name, arguments, summary, re.sub(r"\s+", " ", details).strip(), function)
        return function

    return add


@_command("[COMMAND]")
def _help(session: ShellSession, rest: str) -> None:
    """List the commands, or explain one."""
    if rest:
        command = _known(rest.lstrip(":"))
        session.screen.tell("\n".join(filter(None, [command.usage, f"  {command.summary}", _indented(command)])))
        return
    width = max(len(command.usage) for command in SHELL_COMMANDS.values())
    lines = [f"{command.usage:<{width}}  {command.summary}" for command in SHELL_COMMANDS.values()]
    session.screen.tell("\n".join([*lines, "", "Everything else is Cypher and ends with a semicolon."]))


@_command("[STORE]")
def _use(session: ShellSession, rest: str) -> None:
    """Choose the store that statements go to, or say which it is."""
    say = session.screen.note if rest else session.screen.tell
    session.store = rest or session.store
    say(f"statements go to {session.chosen_store()}")


@_command()
def _stores(session: ShellSession, _: str) -> None:
    """List the stores of the server."""
    found = session.server.stores()
    rows = [[each.name, each.state, each.nodes, each.edges, each.sequence] for each in found]
    _show(session, ["name", "state", "nodes", "relations", "sequence"], rows)


@_command()
def _schema(session: ShellSession, _: str) -> None:
    """Show labels, properties, and the types of nodes and relations in the store, with counts."""
    stats = session.server.stats(session.chosen_store())
    rows, counts = list[list[Any]](), {"Entity": stats.nodes, "RELATES_TO": stats.edges}
    for label, properties in LABELS.items():
        rows.append(["label", label, None, counts.get(label)])
        rows += [["property", f"{label}.{name}", kind, None] for name, kind in properties.items()]
    rows += [["node type", name, None, count] for name, count in stats.types.items()]
    rows += [["relation type", name, None, count] for name, count in stats.relation_types.items()]
    _show(session, ["what", "name", "type", "count"], rows)


@_command()
def _params(session: ShellSession, _: str) -> None:
    """List the parameters that statements may use as $name."""
    _show(
        session,
        ["parameter", "value"],
        [[name, _parameter_text(session, value)] for name, value in session.parameters.items()],
    )


@_command("[NAME [VALUE]]")
def _set(session: ShellSession, rest: str) -> None:
    """Set a parameter to a JSON value, or list settings and parameters.

    Without a value the parameter is forgotten.
    `:set start "req-login"` makes `MATCH (n:Entity {id: $start}) …` possible.
    """
    if not rest:
        _show(session, ["setting", "value"], _settings(session))
        return
    name, *value = rest.split(maxsplit=1)
    name = name.removeprefix("$")
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise InvalidInput(f"{name!r} is no name of a parameter: letters, digits and _ make one")
    if value:
        session.parameters[name] = _json(value[0])
    else:
        session.parameters.pop(name, None)


@_command("[on|off]")
def _timing(session: ShellSession, rest: str) -> None:
    """Say after each statement how long it took, or not."""
    session.timing = _switch(session, "timing", rest, now=session.timing)


@_command("[table|json|csv|jsonl]")
def _mode(session: ShellSession, rest: str) -> None:
    """Choose how rows are shown, or say how they are.

    A table is drawn on a terminal and is tab-separated lines in a pipe; json is one array for each statement, jsonl one
    object for each row. Only tables on a terminal shorten long values.
    """
    say = session.screen.note if rest else session.screen.tell
    session.mode = _one_of_modes(rest) if rest else session.mode
    say(f"rows are shown as {session.mode}")


@_command("[on|off]")
def _write(session: ShellSession, rest: str) -> None:
    """Let statements change the store, or only read."""
    session.write = _switch(session, "write", rest, now=session.write)


@_command("FILE")
def _source(session: ShellSession, rest: str) -> None:
    """Run a file of statements and commands, up to the first that fails."""
    if not rest:
        raise InvalidInput("`:source FILE` needs the file")
    if session.depth >= MAX_SOURCE_DEPTH:
        raise InvalidInput(f"{rest}: files that source one another are followed {MAX_SOURCE_DEPTH} deep, no further")
    text = read_file(Path(rest).expanduser())
    session.depth += 1
    try:
        run(session, text, rest)
    finally:
        session.depth -= 1


@_command("FILE QUERY;")
def _export(session: ShellSession, rest: str) -> None:
    """Write the rows of a statement to a file, as the end of its name says: .csv, .json or .jsonl.

    A name with blanks stands in double quotes. A file of that name is replaced once the rows are there; 100,000 are
    written at most.
    """
    found = re.fullmatch(r'(?:"([^"]+)"|(\S+))\s+(.+)', rest, re.DOTALL)
    if not found:
        raise InvalidInput("`:export FILE QUERY;` needs the file and a statement")
    try:
        session.export(found[3].strip(), Path(found[1] or found[2]).expanduser())
    except OSError as error:
        raise InvalidInput(f"{found[1] or found[2]} cannot be written: {error.strerror}") from error


@_command()
def _quit(_: ShellSession, __: str) -> None:
    """Leave the shell; so does Ctrl-D."""
    raise Left


def read_file(path: Path) -> str:
    """The text of a script; ``-`` is standard input. Raises InvalidInput when it cannot be read."""
    try:
        data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not text in UTF-8: byte {error.start} does not fit") from error


def _known(name: str) -> Command:
    try:
        return SHELL_COMMANDS[name]
    except KeyError:
        raise InvalidInput(f"there is no command :{name}; `:help` lists them") from None


def _parts(text: str) -> tuple[str, str]:
    """The name of a command, and what follows it."""
    found = re.match(r":(\w*)\s*", text)
    end = found.end() if found else 0
    return (found[1] if found else ""), text[end:].removesuffix(";").strip()


def _indented(command: Command) -> str:
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
    """A parameter's value as it was set, so that a table tells "1" from 1."""
    return msgspec.json.encode(value).decode() if session.mode == "table" else value


def _json(text: str) -> Any:
    try:
        return decode_json(text)
    except msgspec.DecodeError as error:
        raise InvalidInput(f"{text} is no JSON value ({error}); text stands in double quotes") from error


def _switch(session: ShellSession, name: str, rest: str, *, now: bool) -> bool:
    if rest not in {"", "on", "off"}:
        raise InvalidInput(f"`:{name}` can be on or off, not {rest!r}")
    chosen = rest == "on" if rest else now
    (session.screen.note if rest else session.screen.tell)(f"{name} is {'on' if chosen else 'off'}")
    return chosen


def _one_of_modes(name: str) -> Mode:
    if name not in MODES:
        raise InvalidInput(f"there is no mode {name!r}: {', '.join(MODES)} are those that there are")
    return name
