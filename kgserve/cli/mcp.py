"""``kgserve mcp``: the stdio bridge that editors start, and the configuration files of editors.

Some editors also run a hook command at the start of a session or with each prompt, and add its output to the model's
context. Most read `hookSpecificOutput`, which names the event; Cursor reads `additional_context`. The answer's format
follows from the event's name.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click
import msgspec

from kgserve.cli.editor_mcp_configs import (
    EDITOR_SERVER_NAME,
    EDITORS,
    INSTALL_LINK_EDITORS,
    EditorMcpConfig,
    build_editor_install_link,
    build_server_entry,
    format_editor_config_list,
    format_mcp_add_command,
    render_editor_mcp_config,
)
from kgserve.cli.options import add_setting_options, make_api_key_option
from kgserve.errors import InvalidInput

HOOK_TIMEOUT_SECONDS = 5
"""Timeout in seconds that an editor applies to the hook command, which limits itself to less."""
_PROMPT_HOOK_EVENTS = frozenset({"UserPromptSubmit", "BeforeAgent", "beforeSubmitPrompt"})
_CURSOR_HOOK_EVENTS = frozenset({"sessionStart", "beforeSubmitPrompt"})


class EditorHookEvent(msgspec.Struct):
    """Input of an editor's hook. Editors write the event's name as `hook_event_name` or `hookEventName`."""

    hook_event_name: str = ""
    event_name: str = msgspec.field(name="hookEventName", default="")
    prompt: str = ""

    @property
    def name(self) -> str:
        """Event name, as the editor spells it."""
        return self.hook_event_name or self.event_name or "UserPromptSubmit"

    @property
    def question(self) -> str:
        """Prompt without surrounding whitespace."""
        return self.prompt.strip()

    @property
    def is_empty(self) -> bool:
        """True for a prompt event whose prompt is blank."""
        return self.name in _PROMPT_HOOK_EVENTS and not self.question

    def answer(self, context: str) -> str:
        """Return the JSON that adds ``context`` to the model's context."""
        if self.name in _CURSOR_HOOK_EVENTS:
            return json.dumps({"additional_context": context}, ensure_ascii=False)
        output = {"hookEventName": self.name, "additionalContext": context}
        return json.dumps({"hookSpecificOutput": output}, ensure_ascii=False)


class EditorHookConfig(NamedTuple):
    """Hook configuration of an editor: its file, format and events.

    ``events``: events whose output reaches the model. ``more``: further setup instructions. ``grouped``: the file holds
    hooks in groups, each with an optional matcher. ``version``: version of the file's format.
    """

    name: str
    place: str
    events: tuple[str, ...] = ("SessionStart", "UserPromptSubmit")
    grouped: bool = True
    typed: bool = True
    milliseconds: bool = False
    version: int | None = None
    more: str = ""

    def entries(self, command: str) -> str:
        """Return the JSON that makes the editor run ``command`` as a hook."""
        hook: dict[str, Any] = {"type": "command"} if self.typed else {}
        hook |= {
            "command": command,
            "timeout": HOOK_TIMEOUT_SECONDS * 1_000 if self.milliseconds else HOOK_TIMEOUT_SECONDS,
        }
        entry = [{"hooks": [hook]}] if self.grouped else [hook]
        version = {} if self.version is None else {"version": self.version}
        return json.dumps({**version, "hooks": dict.fromkeys(self.events, entry)}, indent=2, ensure_ascii=False)


_HOOK_CLIENTS_IN_ORDER = (
    EditorHookConfig("claude-code", ".claude/settings.json in the project, or ~/.claude/settings.json"),
    EditorHookConfig(
        "codex",
        ".codex/hooks.json in the project, or ~/.codex/hooks.json",
        more="older versions need hooks = true, or codex_hooks = true, under [features] in config.toml",
    ),
    EditorHookConfig(
        "gemini",
        ".gemini/settings.json in the project, or ~/.gemini/settings.json",
        events=("SessionStart", "BeforeAgent"),
        milliseconds=True,
    ),
    EditorHookConfig(
        "cursor",
        ".cursor/hooks.json in the project, or ~/.cursor/hooks.json",
        events=("sessionStart",),
        grouped=False,
        typed=False,
        version=1,
        more="its model does not receive the output of prompt hooks, so memories are added at session start only",
    ),
    EditorHookConfig(
        "vscode",
        ".github/hooks/kgserve.json in the project",
        events=("SessionStart",),
        grouped=False,
        more="its model does not receive the output of prompt hooks, so memories are added at session start only",
    ),
)

HOOK_CLIENTS: Mapping[str, EditorHookConfig] = {client.name: client for client in _HOOK_CLIENTS_IN_ORDER}


Function = TypeVar("Function", bound=Callable[..., Any])

_SHARED_SETTINGS = ("data_dir", "call_timeout", "tools", "answers")
_DEFAULT_TOOLS = "memory"
"""Tool set that a new configuration lists."""
_STORE_HELP = "Default store of tool calls."


GENERAL_STORE = "memory"
"""Default store of editors that share one configuration across projects."""

MAX_FOLDER_STORE_NAME_CHARS = 64


def default_store_for_folder(editor: EditorMcpConfig, folder: Path, is_name: Callable[[str], bool]) -> str:
    """Return the default store for an editor configured in ``folder``: named after the project, else `memory`.

    ``is_name``: predicate that accepts valid store names.
    """
    if not editor.of_project or folder in {Path.home(), Path(folder.anchor)}:
        return GENERAL_STORE
    name = re.sub(r"[^a-z0-9_]+", "-", folder.name.lower()).strip("-_")[:MAX_FOLDER_STORE_NAME_CHARS].rstrip("-_")
    return name if is_name(name) else GENERAL_STORE


def add_mcp_bridge_options(*, store: str = "") -> Callable[[Function], Function]:
    """Add the bridge's options to a command. ``store`` is appended to the help of ``--store``."""
    named = click.option("--store", metavar="NAME", help=f"{_STORE_HELP}{store}")
    url = click.option(
        "--url",
        metavar="URL",
        help="Address of a running server.  [default: the data folder's, started if none runs]",
    )

    def add(function: Function) -> Function:
        return add_setting_options(*_SHARED_SETTINGS)(url(named(make_api_key_option()(function))))

    return add


@click.group("mcp", invoke_without_command=True)
@add_mcp_bridge_options()
@click.pass_context
def mcp_bridge_command(context: click.Context, **given: Any) -> int | None:
    """Connect an editor to a server by MCP over standard input and output.

    Messages go to the server of the data folder, which all editors share and which starts automatically. A relative
    data folder is resolved against the editor's working directory, so use an absolute path, as `kgserve mcp config`
    does.
    """
    if context.invoked_subcommand is None:
        from kgserve.cli.mcp_stdio.command import run_mcp_bridge

        return run_mcp_bridge(**given)
    if any(given.values()):
        raise click.UsageError(f"Put options after `{context.invoked_subcommand}`.", context)
    return None


@mcp_bridge_command.command("config", epilog=f"\b\nConfiguration file of each editor:\n{format_editor_config_list()}")
@click.option("--client", type=click.Choice(list(EDITORS)), required=True, help="The editor or agent.")
@add_mcp_bridge_options(
    store="  [default: named after the project's folder, or memory for editors with one configuration]"
)
def print_editor_config_command(
    client: str, data_dir: str | None, url: str | None, store: str | None, key: str | None, **wishes: Any
) -> None:
    """Print the configuration for an editor. Standard error says which file it belongs in.

    Without --tools it lists the memory tools. A key is passed in the command's environment, where other users of the
    machine cannot see it.
    """
    editor = EDITORS[client]
    command = _bridge_command(editor, data_dir, url, store, key, wishes)
    click.echo(render_editor_mcp_config(editor, build_server_entry(editor, command, key)))
    click.echo(f"Add this to {editor.place}.", err=True)
    if enter := format_mcp_add_command(editor, command, keyed=bool(key)):
        click.echo(f"Or run: {enter}", err=True)
    if wishes["tools"] in {None, _DEFAULT_TOOLS}:
        click.echo(_FIRST_STEPS, err=True)


@mcp_bridge_command.command("install", epilog=f"\b\nConfiguration file of each editor:\n{format_editor_config_list()}")
@click.option("--client", type=click.Choice(list(EDITORS)), required=True, help="The editor or agent.")
@click.option(
    "--scope",
    type=click.Choice(["project", "user"]),
    help="Whose configuration: the current folder's or the user's.  [default: project where the editor has one first]",
)
@click.option("--file", type=click.Path(path_type=Path, dir_okay=False), help="Configuration file in another place.")
@click.option("--uninstall", is_flag=True, help="Remove kgserve from the configuration.")
@click.option("--dry-run", is_flag=True, help="Only show the change.")
@click.option("--yes", is_flag=True, help="Do not ask before writing.")
@add_mcp_bridge_options(store="  [default: named after the project's folder, or memory for the user's configuration]")
def install_editor_config_command(
    *,
    client: str,
    scope: str | None,
    file: Path | None,
    uninstall: bool,
    dry_run: bool,
    yes: bool,
    data_dir: str | None,
    url: str | None,
    store: str | None,
    key: str | None,
    **wishes: Any,
) -> None:
    """Write kgserve into an editor's configuration file.

    Shows the change and asks before it writes. Comments, other servers and other settings stay as they are; a copy of
    the old file is kept next to it.
    """
    from kgserve.cli.editor_config_files import locate_editor_config, plan_editor_config_change

    editor = EDITORS[client]
    editor = editor._replace(of_project=scope == "project") if scope else editor
    command = _bridge_command(editor, data_dir, url, store, key, wishes)
    path = file or locate_editor_config(editor)
    change = plan_editor_config_change(path, editor, None if uninstall else build_server_entry(editor, command, key))
    if not change.is_needed:
        click.echo(f"{path} {'does not name kgserve' if uninstall else 'is up to date'}; nothing to do.")
        return
    click.echo(change.format_diff())
    if dry_run:
        return
    if not yes:
        _confirm_editor_config(path)
    backup = change.write(private=bool(key))
    click.echo(f"Wrote {path}." + (f" The old file is {backup.name}." if backup else ""), err=True)
    if key and editor.of_project:
        click.echo(f"{path} contains an API key; keep it out of version control.", err=True)
    click.echo("Restart the editor to apply it.", err=True)


@mcp_bridge_command.command("link")
@click.option("--client", type=click.Choice(INSTALL_LINK_EDITORS), required=True, help="The editor.")
@add_mcp_bridge_options(store="  [default: named after the current folder]")
def print_editor_install_link_command(
    client: str, data_dir: str | None, url: str | None, store: str | None, key: str | None, **wishes: Any
) -> None:
    """Print a link that adds kgserve to an editor when you open it.

    The link names the command and the folder of this machine. It must not contain a key, because links are shared.
    """
    if key:
        raise click.UsageError("A link must not contain a key; use `kgserve mcp install --key`.")
    editor = EDITORS[client]
    command = _bridge_command(editor, data_dir, url, store, key, wishes)
    click.echo(build_editor_install_link(editor, build_server_entry(editor, command)))


@mcp_bridge_command.command("hooks")
@click.option("--client", type=click.Choice([*HOOK_CLIENTS]), required=True, help="The editor or agent.")
@click.option("--store", metavar="NAME", help="Store to recall from.  [default: named after the project's folder]")
@click.option("--url", metavar="URL", help="Address of a running server.  [default: the data folder's]")
@add_setting_options("data_dir")
def print_editor_hooks_command(client: str, store: str | None, url: str | None, data_dir: str | None) -> None:
    """Print hooks that make an editor recall memories automatically.

    At the start of a session they add the newest memories. With each prompt they add the memories that match it, if the
    editor passes them to its model. A hook never starts a server and prints nothing without one. Set the key in
    KGSERVE_KEY.
    """
    from kgserve.platform.server_discovery import resolve_data_folder

    known = HOOK_CLIENTS[client]
    where = ["--server", url] if url else ["--data", str(resolve_data_folder(data_dir))]
    named = store or default_store_for_folder(EDITORS[client], Path.cwd(), _is_store_name)
    click.echo(known.entries(shlex.join([*resolve_kgserve_launch_command(), "recall", named, "--hook", *where])))
    click.echo(f"Add this to {known.place}.", err=True)
    if known.more:
        click.echo(f"{known.more[0].upper()}{known.more[1:]}.", err=True)


_FIRST_STEPS = """
Then restart the editor and try it:
  you:   we ship with Postgres 16, Alice decided that on Monday
  agent: retain {"content": "The web shop ships with Postgres 16.", "entities": [{"name": "Alice"}]}
  (the next day, in another editor)
  you:   which database do we use?
  agent: recall {"query": "which database do we use?"}
  you:   we moved to 17
  agent: retain {"content": "The web shop ships with Postgres 17.", "supersedes": "the id from recall"}
`--tools default` also lists the graph tools. `kgserve mcp hooks` makes an editor recall automatically."""


def resolve_kgserve_launch_command() -> list[str]:
    """Return the command that starts this installation: the script in its environment, or the module."""
    script = Path(sys.executable).with_name(EDITOR_SERVER_NAME)
    found = str(script) if script.exists() else shutil.which(EDITOR_SERVER_NAME)
    return [str(Path(found).absolute())] if found else [sys.executable, "-m", EDITOR_SERVER_NAME]


def _bridge_command(
    editor: EditorMcpConfig,
    data_dir: str | None,
    url: str | None,
    store: str | None,
    key: str | None,
    wishes: Mapping[str, Any],
) -> list[str]:
    """Return the command line of the bridge for an editor. Raises UsageError for wrong options."""
    from kgserve.cli.mcp_stdio.command import find_mcp_bridge_option_errors
    from kgserve.platform.server_discovery import resolve_data_folder

    for fault in find_mcp_bridge_option_errors(url, store, key, wishes["call_timeout"]):
        raise click.UsageError(fault)
    where = ["--url", url] if url else ["--data", str(resolve_data_folder(data_dir))]
    named = store or default_store_for_folder(editor, Path.cwd(), _is_store_name)
    chosen = {**wishes, "tools": wishes["tools"] or _DEFAULT_TOOLS}
    texts = {name: f"{value:g}" if isinstance(value, float) else value for name, value in chosen.items() if value}
    more = [part for name, text in texts.items() for part in (f"--{name.replace('_', '-')}", text)]
    return [*resolve_kgserve_launch_command(), "mcp", *where, "--store", named, *more]


def _confirm_editor_config(path: Path) -> None:
    """Ask whether to write the file. Raises UsageError without a terminal."""
    if not sys.stdin.isatty():
        raise click.UsageError("Standard input is not a terminal; use --yes to confirm, or --dry-run to look.")
    click.confirm(f"Write {path}?", default=True, abort=True, err=True)


def _is_store_name(text: str) -> bool:
    from kgserve.storage.model.store_names import check_store_name

    try:
        check_store_name(text)
    except InvalidInput:
        return False
    return True
