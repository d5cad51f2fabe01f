"""``kgserve mcp``: the bridge that editors start, and what to write into their configuration."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from kgserve.cli.editors import EDITORS, NAME, Editor, configuration, entering, listed, usual_store
from kgserve.cli.hooks import HOOK_CLIENTS
from kgserve.cli.options import key_option, settings_options
from kgserve.errors import InvalidInput

Function = TypeVar("Function", bound=Callable[..., Any])

_OF_BOTH = ("data_dir", "call_timeout", "tools", "answers")
_NEW_TOOLS = "memory"
"""What a new set-up lists."""
_STORE = "The store that tools use when a call names none."


def bridge_options(*, store: str = "") -> Callable[[Function], Function]:
    """Add the bridge's options; ``store`` is said of ``--store``."""
    named = click.option("--store", metavar="NAME", help=f"{_STORE}{store}")
    url = click.option(
        "--url", metavar="URL", help="A server to use as it is.  [default: the data folder's, started if none runs]"
    )

    def add(function: Function) -> Function:
        return settings_options(*_OF_BOTH)(url(named(key_option()(function))))

    return add


@click.group(invoke_without_command=True)
@bridge_options()
@click.pass_context
def mcp(context: click.Context, **given: Any) -> int | None:
    """Speak MCP with an editor over standard input and output.

    Messages go to the server of the data folder, which is started when none runs and shared by every editor. A
    relative folder counts from where the editor starts the command, so name it in full; `kgserve mcp config` does.
    """
    if context.invoked_subcommand is None:
        from kgserve.bridge.command import run

        return run(**given)
    if any(given.values()):
        raise click.UsageError(f"options belong behind `{context.invoked_subcommand}`", context)
    return None


@mcp.command(epilog=f"\b\nWhere each editor reads it:\n{listed()}")
@click.option("--client", type=click.Choice(list(EDITORS)), required=True, help="The editor or agent.")
@bridge_options(store="  [default: called like the project's folder, or memory for an editor that has one for all]")
def config(
    client: str, data_dir: str | None, url: str | None, store: str | None, key: str | None, **wishes: Any
) -> None:
    """Print what an editor's configuration needs, in its file's form. Where it belongs is said on standard error.

    Without --tools it lists the tools of a memory. A key goes into the variables of the command, where other users of
    the machine cannot see it.
    """
    from kgserve.bridge.command import faults

    for fault in faults(url, store, key, wishes["call_timeout"]):
        raise click.UsageError(fault)
    editor = EDITORS[client]
    command = [*executable(), "mcp", *_arguments(editor, data_dir, url, store)]
    wishes["tools"] = wishes["tools"] or _NEW_TOOLS
    texts = {name: f"{value:g}" if isinstance(value, float) else value for name, value in wishes.items() if value}
    command += [part for name, text in texts.items() for part in (f"--{name.replace('_', '-')}", text)]
    click.echo(configuration(editor, command, key))
    click.echo(f"This goes into {editor.place}.", err=True)
    if enter := entering(editor, command, keyed=bool(key)):
        click.echo(f"Or run: {enter}", err=True)
    if wishes["tools"] == _NEW_TOOLS:
        click.echo(_MINUTE, err=True)


@mcp.command()
@click.option("--client", type=click.Choice([*HOOK_CLIENTS]), required=True, help="The editor or agent.")
@click.option("--store", metavar="NAME", help="The store to recall from.  [default: called like the project's folder]")
@click.option("--url", metavar="URL", help="A server to use as it is.  [default: the data folder's]")
@settings_options("data_dir")
def hooks(client: str, store: str | None, url: str | None, data_dir: str | None) -> None:
    """Print hooks by which an editor recalls by itself, in its file's form.

    At the start of a session it gets the newest memories, and with each prompt those that fit it, where its model hears
    of them. A hook starts no server and says nothing without one; a key is the variable KGSERVE_KEY.
    """
    from kgserve.reach import data_folder

    known = HOOK_CLIENTS[client]
    where = ["--server", url] if url else ["--data", str(data_folder(data_dir))]
    named = store or usual_store(EDITORS[client], Path.cwd(), _is_store_name)
    click.echo(known.entries(shlex.join([*executable(), "recall", named, "--hook", *where])))
    click.echo(f"This goes into {known.place}.", err=True)
    if known.more:
        click.echo(f"{known.more[0].upper()}{known.more[1:]}.", err=True)


_MINUTE = """
Then restart the editor, and try it:
  you:   we ship with Postgres 16, Alice decided that on Monday
  agent: retain {"content": "The web shop ships with Postgres 16.", "entities": [{"name": "Alice"}]}
  (in another editor, the next day)
  you:   which database do we use?
  agent: recall {"query": "which database do we use?"}
  you:   we moved to 17
  agent: retain {"content": "The web shop ships with Postgres 17.", "supersedes": "the id that recall has shown"}
`--tools default` lists the tools of a graph as well. `kgserve mcp hooks` has an editor recall by itself."""


def executable() -> list[str]:
    """How to start this very installation from any folder: the script beside the interpreter, else the module."""
    beside = Path(sys.executable).with_name(NAME)
    found = str(beside) if beside.exists() else shutil.which(NAME)
    return [str(Path(found).absolute())] if found else [sys.executable, "-m", NAME]


def _arguments(editor: Editor, data_dir: str | None, url: str | None, store: str | None) -> list[str]:
    from kgserve.reach import data_folder

    where = ["--url", url] if url else ["--data", str(data_folder(data_dir))]
    return [*where, "--store", store or usual_store(editor, Path.cwd(), _is_store_name)]


def _is_store_name(text: str) -> bool:
    from kgserve.model.requests import check_store_name

    try:
        check_store_name(text)
    except InvalidInput:
        return False
    return True
