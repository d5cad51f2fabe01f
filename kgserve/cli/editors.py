"""The editors and agents that `kgserve mcp config` knows: where each reads about servers, and in what form."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

NAME = "kgserve"
"""What the server is called in an editor."""

GENERAL_STORE = "memory"
"""The store of an editor that reads one configuration for all projects."""

MAX_STORE_NAME = 64


class Editor(NamedTuple):
    """One of them. ``place``: the file, and what else leads there; ``root``: where servers stand in it.

    ``of_project``: the file belongs to one project. ``typed``: entries say that they are started. ``command`` enters
    the server, followed by how to start it; a key goes before that with ``variable``.
    """

    name: str
    place: str
    root: str = "mcpServers"
    of_project: bool = False
    typed: bool = False
    toml: bool = False
    command: str | None = None
    variable: str = ""


_ALL = (
    Editor("claude-desktop", "claude_desktop_config.json (Settings, Developer, Edit Config)"),
    Editor(
        "claude-code",
        ".mcp.json in the project",
        of_project=True,
        typed=True,
        command=f"claude mcp add {NAME}",
        variable="-e",
    ),
    Editor("cursor", ".cursor/mcp.json in the project, or ~/.cursor/mcp.json", of_project=True),
    Editor("vscode", ".vscode/mcp.json in the project", root="servers", of_project=True, typed=True),
    Editor(
        "codex",
        "~/.codex/config.toml, or .codex/config.toml in a trusted project",
        root="mcp_servers",
        toml=True,
        command=f"codex mcp add {NAME}",
        variable="--env",
    ),
    Editor("zed", "~/.config/zed/settings.json (zed: open settings)", root="context_servers"),
    Editor("windsurf", "~/.codeium/windsurf/mcp_config.json (Settings, Cascade, MCP Servers)"),
    Editor("gemini", ".gemini/settings.json in the project, or ~/.gemini/settings.json", of_project=True),
    Editor(
        "jetbrains",
        "Settings, Tools, AI Assistant, Model Context Protocol (MCP), Add, As JSON; for Junie .junie/mcp/mcp.json in "
        "the project",
    ),
    Editor("generic", "the editor's configuration of MCP servers", of_project=True),
)

EDITORS: Mapping[str, Editor] = {editor.name: editor for editor in _ALL}


def listed() -> str:
    """The places of all of them, as a list for a person."""
    width = max(map(len, EDITORS))
    return "\n".join(f"{editor.name:<{width}}  {editor.place}" for editor in _ALL)


def configuration(editor: Editor, command: list[str], key: str | None = None) -> str:
    """What has an editor start ``command``, in the form of its file."""
    entry: dict[str, Any] = {"type": "stdio"} if editor.typed else {}
    entry |= {"command": command[0], "args": command[1:]}
    if key:
        entry["env"] = {"KGSERVE_KEY": key}
    if editor.toml:
        return _toml(f"{editor.root}.{NAME}", entry)
    return json.dumps({editor.root: {NAME: entry}}, indent=2, ensure_ascii=False)


def entering(editor: Editor, command: list[str], *, keyed: bool) -> str | None:
    """The editor's own command that enters the server, if it has one. A key is left to be filled in."""
    if editor.command is None:
        return None
    variable = f" {editor.variable} KGSERVE_KEY=…" if keyed else ""
    return f"{editor.command}{variable} -- {shlex.join(command)}"


def usual_store(editor: Editor, folder: Path, is_name: Callable[[str], bool]) -> str:
    """The store for an editor that is set up in a folder: the project's, or `memory` where there is no project.

    ``is_name``: whether a text can be the name of a store.
    """
    if not editor.of_project or folder in {Path.home(), Path(folder.anchor)}:
        return GENERAL_STORE
    name = re.sub(r"[^a-z0-9_]+", "-", folder.name.lower()).strip("-_")[:MAX_STORE_NAME].rstrip("-_")
    return name if is_name(name) else GENERAL_STORE


def _toml(table: str, entry: Mapping[str, Any]) -> str:
    """A table of TOML, whose strings and arrays are JSON's."""
    plain = {name: value for name, value in entry.items() if not isinstance(value, dict)}
    lines = [f"[{table}]", *(f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in plain.items())]
    below = [_toml(f"{table}.{name}", value) for name, value in entry.items() if isinstance(value, dict)]
    return "\n\n".join(["\n".join(lines), *below])
