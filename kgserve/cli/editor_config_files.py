"""Files of editors that list MCP servers: where they are, and a change of one, with preview and backup."""

from __future__ import annotations

import difflib
import os
import re
import stat
import sys
import time
from pathlib import Path
from typing import NamedTuple

from kgserve.cli.editor_config_edits import ServerEntry, remove_server_entry, set_server_entry
from kgserve.cli.editor_mcp_configs import EDITOR_SERVER_NAME, EditorMcpConfig
from kgserve.errors import InvalidInput
from kgserve.platform.durable_files import translate_storage_errors, write_file_atomically

PRIVATE_FILE_MODE = 0o600
_KEY_IN_TEXT = re.compile(r"(KGSERVE_KEY\"?\s*[:=]\s*\")[^\"]*")


class EditorConfigChange(NamedTuple):
    """Change of an editor's configuration file. ``old`` is None if the file does not exist."""

    path: Path
    old: str | None
    new: str

    @property
    def is_needed(self) -> bool:
        """True if the file's text would change."""
        return self.new != (self.old or "")

    def format_diff(self) -> str:
        """Return the change as a unified diff, with API keys hidden."""
        old, new = ([_hide_keys(line) for line in (text or "").splitlines()] for text in (self.old, self.new))
        name = str(self.path)
        return "\n".join(difflib.unified_diff(old, new, fromfile=name, tofile=name, lineterm=""))

    def write(self, *, private: bool) -> Path | None:
        """Write the file, and return the path of the old file's backup, if there was one.

        ``private``: create the file with access for this user only. An existing file keeps its mode.
        """
        with translate_storage_errors(f"writing {self.path}"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.old is None:
                write_file_atomically(self.path, self.new.encode(), PRIVATE_FILE_MODE if private else 0o666)
                return None
            mode = stat.S_IMODE(self.path.stat().st_mode)
            backup = self._write_backup(self.path.read_bytes())
            write_file_atomically(self.path, self.new.encode(), PRIVATE_FILE_MODE)
            self.path.chmod(mode)
            return backup

    def _write_backup(self, content: bytes) -> Path:
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        names = (f"{self.path.name}.{stamp}{suffix}.bak" for suffix in ("", *(f"-{n}" for n in range(1, 100))))
        backup = next(path for path in map(self.path.with_name, names) if not path.exists())
        descriptor = os.open(backup, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE_MODE)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        return backup


def locate_editor_config(editor: EditorMcpConfig, *, system: str = sys.platform) -> Path:
    """Return the configuration file of an editor: the current folder's project's, or the user's.

    Raises InvalidInput for an editor that has no such file.
    """
    user_file = editor.macos_file if system == "darwin" and editor.macos_file else editor.user_file
    name = editor.project_file if editor.of_project else user_file
    if not name:
        other = "--scope user" if editor.user_file else "--scope project" if editor.project_file else "--file PATH"
        raise InvalidInput(f"kgserve knows no such file of {editor.name}; name one with --file, or use {other}")
    return (Path.cwd() if editor.of_project else Path.home()) / name


def plan_editor_config_change(path: Path, editor: EditorMcpConfig, entry: ServerEntry | None) -> EditorConfigChange:
    """Return the change that adds or updates kgserve's server, or removes it if ``entry`` is None.

    Links are followed. Raises InvalidInput, naming the file, if it cannot be read or edited.
    """
    target = path.resolve()
    try:
        old = target.read_bytes().decode() if target.exists() else None
        if entry is None:
            new = remove_server_entry(old or "", editor.root, EDITOR_SERVER_NAME, toml=editor.toml)
        else:
            new = set_server_entry(old or "", editor.root, EDITOR_SERVER_NAME, entry, toml=editor.toml)
    except (OSError, UnicodeDecodeError, InvalidInput) as error:
        raise InvalidInput(f"{path} was not changed: {error}") from error
    return EditorConfigChange(target, old, new)


def _hide_keys(line: str) -> str:
    return _KEY_IN_TEXT.sub(r"\1…", line)
