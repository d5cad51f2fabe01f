"""``kgserve shell``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kgserve.cli.options import settings_options
from kgserve.cli.remote import Unreachable
from kgserve.settings import load
from kgserve.shell.formats import MODES, Mode

if TYPE_CHECKING:
    from kgserve.shell.session import Session


@click.command()
@click.argument("store", required=False)
@click.option("-c", "query", metavar="QUERY", help="Run this and leave.")
@click.option("-f", "file", metavar="FILE", type=click.Path(path_type=Path), help="Run a file and leave.")
@click.option("--mode", type=click.Choice(MODES), default="table", show_default=True, help="How rows are shown.")
@click.option("--write", is_flag=True, help="Let statements change the store.")
@click.option(
    "--url", metavar="URL", help="The server to talk to.  [default: that of the data folder, started if need be]"
)
@settings_options("data_dir", "key")
def shell(
    store: str | None,
    query: str | None,
    file: Path | None,
    mode: Mode,
    *,
    write: bool,
    url: str | None,
    data_dir: str | None,
    key: str | None,
) -> int:
    """Ask STORE in Cypher: at a prompt, or from QUERY, FILE or standard input.

    Statements end with a semicolon; `:help` lists the commands of the shell. Without --write nothing can be changed.
    A script ends at the first failure with exit code 1.
    """
    if query is not None and file is not None:
        raise click.UsageError("-c and -f both say what to run; choose one")
    from kgserve.reach import data_folder
    from kgserve.shell.screen import Screen
    from kgserve.shell.session import Connection, NoServer, Session

    screen = Screen()
    try:
        server = Connection(url, data_folder(data_dir), screen.note, load({"key": key}).key or None)
    except NoServer as error:
        raise Unreachable(error.message) from error
    session = Session(server, screen, store, mode, write=write)
    try:
        return _serve(session, query, file)
    finally:
        server.close()


def _serve(session: Session, query: str | None, file: Path | None) -> int:
    from kgserve.shell.commands import Left, Stopped, read_file, run

    if query is None and file is None and sys.stdin.isatty() and session.screen.terminal:
        from kgserve.shell.terminal import converse

        converse(session, _history())
        return 0
    try:
        text = query if query is not None else read_file(file or Path("-"))
        run(session, text, None if query is not None else str(file or "standard input"))
    except Stopped as stopped:
        return stopped.code
    except Left:
        return 0
    return 0


def _history() -> Path:
    """Where the history is kept: in the folder that the user's system has for state."""
    state = os.environ.get("XDG_STATE_HOME")  # noqa: TID251 - the user's folder, no setting of kgserve
    return (Path(state) if state else Path.home() / ".local" / "state") / "kgserve" / "history"
