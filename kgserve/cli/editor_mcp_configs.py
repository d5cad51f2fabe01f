"""MCP server configurations of editors: their files, their formats, commands and links that add a server."""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from kgserve.cli.editor_config_edits import render_toml_table

EDITOR_SERVER_NAME = "kgserve"
"""Name of the server in an editor's configuration."""


class EditorMcpConfig(NamedTuple):
    """MCP server configuration of an editor: its files, format and the command that adds a server.

    ``place``: its configuration file, and the way to it in the editor. ``root``: the key that holds the servers.
    ``of_project``: the file belongs to one project. ``typed``: entries carry `"type": "stdio"`. ``command``: the
    editor's own command that adds the server, followed by the server's command line. ``variable``: the option of that
    command that sets an environment variable. ``project_file``, ``user_file``, ``macos_file``: paths below the project
    and the home folder, or "" where the editor has no such file; ``macos_file`` is the user's on macOS, if different.
    """

    name: str
    place: str
    root: str = "mcpServers"
    of_project: bool = False
    typed: bool = False
    toml: bool = False
    command: str | None = None
    variable: str = ""
    project_file: str = ""
    user_file: str = ""
    macos_file: str = ""


_EDITORS_IN_ORDER = (
    EditorMcpConfig(
        "claude-desktop",
        "claude_desktop_config.json (Settings, Developer, Edit Config)",
        user_file=".config/Claude/claude_desktop_config.json",
        macos_file="Library/Application Support/Claude/claude_desktop_config.json",
    ),
    EditorMcpConfig(
        "claude-code",
        ".mcp.json in the project, or ~/.claude.json",
        of_project=True,
        typed=True,
        command=f"claude mcp add {EDITOR_SERVER_NAME}",
        variable="-e",
        project_file=".mcp.json",
        user_file=".claude.json",
    ),
    EditorMcpConfig(
        "cursor",
        ".cursor/mcp.json in the project, or ~/.cursor/mcp.json",
        of_project=True,
        project_file=".cursor/mcp.json",
        user_file=".cursor/mcp.json",
    ),
    EditorMcpConfig(
        "vscode",
        ".vscode/mcp.json in the project, or the user's mcp.json (MCP: Open User Configuration)",
        root="servers",
        of_project=True,
        typed=True,
        project_file=".vscode/mcp.json",
        user_file=".config/Code/User/mcp.json",
        macos_file="Library/Application Support/Code/User/mcp.json",
    ),
    EditorMcpConfig(
        "codex",
        "~/.codex/config.toml, or .codex/config.toml in a trusted project",
        root="mcp_servers",
        toml=True,
        command=f"codex mcp add {EDITOR_SERVER_NAME}",
        variable="--env",
        project_file=".codex/config.toml",
        user_file=".codex/config.toml",
    ),
    EditorMcpConfig(
        "zed",
        "~/.config/zed/settings.json (zed: open settings), or .zed/settings.json in the project",
        root="context_servers",
        project_file=".zed/settings.json",
        user_file=".config/zed/settings.json",
    ),
    EditorMcpConfig(
        "windsurf",
        "~/.codeium/windsurf/mcp_config.json (Settings, Cascade, MCP Servers)",
        user_file=".codeium/windsurf/mcp_config.json",
    ),
    EditorMcpConfig(
        "gemini",
        ".gemini/settings.json in the project, or ~/.gemini/settings.json",
        of_project=True,
        project_file=".gemini/settings.json",
        user_file=".gemini/settings.json",
    ),
    EditorMcpConfig(
        "jetbrains",
        "Settings, Tools, AI Assistant, Model Context Protocol (MCP), Add, As JSON; for Junie .junie/mcp/mcp.json in "
        "the project, or ~/.junie/mcp/mcp.json",
        project_file=".junie/mcp/mcp.json",
        user_file=".junie/mcp/mcp.json",
    ),
    EditorMcpConfig("generic", "the editor's configuration of MCP servers", of_project=True),
)

EDITORS: Mapping[str, EditorMcpConfig] = {editor.name: editor for editor in _EDITORS_IN_ORDER}


def format_editor_config_list() -> str:
    """Return the configuration files of all editors as an aligned text list."""
    width = max(map(len, EDITORS))
    return "\n".join(f"{editor.name:<{width}}  {editor.place}" for editor in _EDITORS_IN_ORDER)


def build_server_entry(editor: EditorMcpConfig, command: list[str], key: str | None = None) -> dict[str, Any]:
    """Return the entry of an editor's configuration that starts ``command`` as an MCP server."""
    entry: dict[str, Any] = {"type": "stdio"} if editor.typed else {}
    entry |= {"command": command[0], "args": command[1:]}
    return entry | ({"env": {"KGSERVE_KEY": key}} if key else {})


def render_editor_mcp_config(editor: EditorMcpConfig, entry: Mapping[str, Any]) -> str:
    """Return a configuration with one server, in the format of the editor's file."""
    if editor.toml:
        return render_toml_table((editor.root, EDITOR_SERVER_NAME), entry)
    return json.dumps({editor.root: {EDITOR_SERVER_NAME: entry}}, indent=2, ensure_ascii=False)


def format_mcp_add_command(editor: EditorMcpConfig, command: list[str], *, keyed: bool) -> str | None:
    """Return the editor's own command that adds the server, or None. A key is left as a placeholder."""
    if editor.command is None:
        return None
    variable = f" {editor.variable} KGSERVE_KEY=…" if keyed else ""
    return f"{editor.command}{variable} -- {shlex.join(command)}"


INSTALL_LINK_EDITORS = ("cursor", "vscode")
"""Editors that add a server when a link is opened."""


def build_editor_install_link(editor: EditorMcpConfig, entry: Mapping[str, Any]) -> str:
    """Return the link that makes an editor of INSTALL_LINK_EDITORS add the server, after asking its user."""
    if editor.name == "vscode":
        return f"vscode:mcp/install?{quote(json.dumps({'name': EDITOR_SERVER_NAME, **entry}), safe='')}"
    config = base64.b64encode(json.dumps(entry).encode()).decode()
    return f"cursor://anysphere.cursor-deeplink/mcp/install?name={EDITOR_SERVER_NAME}&config={quote(config, safe='')}"
