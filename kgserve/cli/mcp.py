"""``kgserve mcp``: the bridge that editors start, and what to write into their configuration."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from kgserve.cli.options import key_option, settings_options

Function = TypeVar("Function", bound=Callable[..., Any])

NAME = "kgserve"
"""What the server is called in an editor."""

PLACES = {
    "claude-desktop": "claude_desktop_config.json (Settings, Developer, Edit Config)",
    "claude-code": ".mcp.json in the project",
    "cursor": ".cursor/mcp.json in the project, or ~/.cursor/mcp.json",
    "vscode": ".vscode/mcp.json in the project",
    "generic": "the editor's configuration of MCP servers",
}
"""Where each client reads it."""

_TYPED = {"claude-code", "vscode"}


def bridge_options(function: Function) -> Function:
    """Add the bridge's options: ``--data``, ``--url``, ``--store`` and ``--key``."""
    store = click.option("--store", metavar="NAME", help="The store that tools use when a call names none.")
    url = click.option(
        "--url", metavar="URL", help="A server to use as it is.  [default: the data folder's, started if none runs]"
    )
    return settings_options("data_dir")(url(store(key_option()(function))))


@click.group(invoke_without_command=True)
@bridge_options
@click.pass_context
def mcp(
    context: click.Context, data_dir: str | None, url: str | None, store: str | None, key: str | None
) -> int | None:
    """Speak MCP with an editor over standard input and output.

    Messages go to the server of the data folder, which is started when none runs and shared by every editor. A
    relative folder counts from where the editor starts the command, so name it in full; `kgserve mcp config` does.
    """
    if context.invoked_subcommand is None:
        from kgserve.bridge.command import run

        return run(data_dir, url, store, key)
    if data_dir or url or store or key:
        raise click.UsageError(f"options belong behind `{context.invoked_subcommand}`", context)
    return None


@mcp.command()
@click.option("--client", type=click.Choice(list(PLACES)), required=True, help="The editor or agent.")
@bridge_options
def config(client: str, data_dir: str | None, url: str | None, store: str | None, key: str | None) -> None:
    """Print what an editor's configuration needs, as JSON. Where it belongs is said on standard error.

    A key goes into the variables of the command, where other users of the machine cannot see it.
    """
    from kgserve.bridge.command import faults

    for fault in faults(url, store, key):
        raise click.UsageError(fault)
    command = [*executable(), "mcp", *_arguments(data_dir, url, store)]
    click.echo(json.dumps(snippet(client, command, key), indent=2, ensure_ascii=False))
    click.echo(f"This goes into {PLACES[client]}.", err=True)
    if client == "claude-code":
        variable = " -e KGSERVE_KEY=…" if key else ""
        click.echo(f"Or run: claude mcp add {NAME}{variable} -- {shlex.join(command)}", err=True)


def snippet(client: str, command: list[str], key: str | None = None) -> dict[str, Any]:
    """The configuration that has ``client`` start ``command``."""
    entry: dict[str, Any] = {"command": command[0], "args": command[1:]}
    if key:
        entry["env"] = {"KGSERVE_KEY": key}
    if client in _TYPED:
        entry = {"type": "stdio", **entry}
    return {"servers" if client == "vscode" else "mcpServers": {NAME: entry}}


def executable() -> list[str]:
    """How to start this very installation from any folder: the script beside the interpreter, else the module."""
    beside = Path(sys.executable).with_name(NAME)
    found = str(beside) if beside.exists() else shutil.which(NAME)
    return [str(Path(found).absolute())] if found else [sys.executable, "-m", NAME]


def _arguments(data_dir: str | None, url: str | None, store: str | None) -> list[str]:
    from kgserve.reach import data_folder

    where = ["--url", url] if url else ["--data", str(data_folder(data_dir))]
    return [*where, "--store", store] if store else where
