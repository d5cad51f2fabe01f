"""``kgserve shell`` and ``kgserve search``: Cypher queries, and text search."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from kgserve.cli.options import ServerUnreachable, add_server_options, add_setting_options, open_server_client
from kgserve.cli.shell.formats import MODES, Mode
from kgserve.cli.terminal import TerminalTableColumn, as_json_option, print_json_if_requested, print_table_or_tsv
from kgserve.graph.request_bodies import SearchMode
from kgserve.platform.settings import load_settings

if TYPE_CHECKING:
    from kgserve.cli.shell.session import ShellSession


@click.command("shell")
@click.argument("store", required=False)
@click.option("-c", "query", metavar="QUERY", help="Run QUERY and exit.")
@click.option("-f", "file", metavar="FILE", type=click.Path(path_type=Path), help="Run a file and exit.")
@click.option("--mode", type=click.Choice(MODES), default="table", show_default=True, help="Output format of rows.")
@click.option("--write", is_flag=True, help="Allow statements to change the store.")
@click.option("--url", metavar="URL", help="Address of the server.  [default: the data folder's, started on demand]")
@add_setting_options("data_dir", "key")
def cypher_shell_command(
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
    """Query STORE in Cypher, interactively or from QUERY, FILE or standard input.

    Statements end with a semicolon; `:help` lists the commands of the shell. Without --write, statements cannot change
    the store. A script stops at the first failure with exit code 1.
    """
    if query is not None and file is not None:
        raise click.UsageError("-c and -f cannot be combined.")
    from kgserve.cli.shell.session import NoServerAvailable, ServerConnection, ShellSession
    from kgserve.cli.shell.shell_output import ShellOutput
    from kgserve.platform.server_discovery import resolve_data_folder

    screen = ShellOutput()
    try:
        server = ServerConnection(
            url, resolve_data_folder(data_dir), screen.note, load_settings({"key": key}).key or None
        )
    except NoServerAvailable as error:
        raise ServerUnreachable(error.message) from error
    session = ShellSession(server, screen, store, mode, write=write)
    try:
        return _serve(session, query, file)
    finally:
        server.close()


def _serve(session: ShellSession, query: str | None, file: Path | None) -> int:
    from kgserve.cli.shell.commands import ShellCommandFailed, ShellExit, read_cypher_script_file, run_cypher_script

    if query is None and file is None and sys.stdin.isatty() and session.screen.terminal:
        from kgserve.cli.shell.interactive_prompt import run_prompt_loop

        run_prompt_loop(session, _history())
        return 0
    try:
        text = query if query is not None else read_cypher_script_file(file or Path("-"))
        run_cypher_script(session, text, None if query is not None else str(file or "standard input"))
    except ShellCommandFailed as stopped:
        return stopped.code
    except ShellExit:
        return 0
    return 0


def _history() -> Path:
    """Return the path of the history file, in the user's folder for application state."""
    state = os.environ.get("XDG_STATE_HOME")  # noqa: TID251 - a folder of the user, not a setting of kgserve
    return (Path(state) if state else Path.home() / ".local" / "state") / "kgserve" / "history"


HIT_COLUMNS = (
    TerminalTableColumn("Score"),
    TerminalTableColumn("Type"),
    TerminalTableColumn("Id"),
    TerminalTableColumn("Content"),
)
_MAX_CONTENT_CHARS = 200


@click.command("search")
@click.argument("store")
@click.argument("query")
@click.option(
    "--mode", type=click.Choice(get_args(SearchMode)), default="hybrid", show_default=True, help="Search method."
)
@click.option("--limit", type=click.IntRange(1, 100), default=10, show_default=True, help="Maximum number of nodes.")
@click.option("--type", "types", metavar="TYPE", multiple=True, help="Only nodes of this type; may be repeated.")
@click.option("--tag", "tags", metavar="TAG", multiple=True, help="Only nodes with this tag; may be repeated.")
@click.option("--prefix", is_flag=True, help="Also match words that begin with the last word of QUERY.")
@click.option("--as-of", metavar="WHEN", help="State to search: a sequence, or a time such as 2025-07-15T12:00:00Z.")
@click.option("--valid-at", metavar="TIME", help="Only facts that were valid at this time, or `now`.")
@as_json_option
@add_server_options
def search_nodes_command(
    store: str,
    query: str,
    *,
    mode: SearchMode,
    limit: int,
    types: tuple[str, ...],
    tags: tuple[str, ...],
    prefix: bool,
    as_of: str | None,
    valid_at: str | None,
) -> None:
    """Find nodes of STORE by words, meaning and relations, best matches first.

    QUERY is plain text. Recent writes may be missing until the indexes have caught up.
    """
    with open_server_client() as client:
        found = client.store(store).search(
            query,
            mode=mode,
            limit=limit,
            types=types or None,
            tags=tags or None,
            prefix=prefix,
            as_of=as_of,
            valid_at=valid_at,
        )
    if print_json_if_requested(found):
        return
    if found.degraded:
        click.echo("kgserve: no embedding model is available; results are ranked by words and letters only", err=True)
    if found.notice:
        click.echo(f"kgserve: {found.notice}", err=True)
    print_table_or_tsv(
        HIT_COLUMNS,
        [(f"{hit.score:.3f}", hit.node.type, hit.node.id, _shorten(hit.node.content or "")) for hit in found.hits],
    )


def _shorten(content: str) -> str:
    words = " ".join(content[: 2 * _MAX_CONTENT_CHARS].split())
    return words if len(words) <= _MAX_CONTENT_CHARS else f"{words[: _MAX_CONTENT_CHARS - 1]}…"
