from __future__ import annotations

from pathlib import Path

import pytest

from kgserve.cli.shell import formats
from kgserve.cli.shell.commands import SHELL_COMMANDS
from tests.cli.running import ServerProcessHandle, kgserve


def test_all_documented_commands_exist() -> None:
    documented = "help use stores schema params set timing mode write source export quit"
    assert list(SHELL_COMMANDS) == documented.split()


@pytest.mark.parametrize("name", SHELL_COMMANDS)
def test_each_command_has_help(name: str) -> None:
    command = SHELL_COMMANDS[name]
    assert command.summary.endswith(".")
    assert len(command.summary) > 20
    assert "\n" not in command.summary


def test_help_lists_every_command_and_explains_each(server: ServerProcessHandle) -> None:
    listed = kgserve("shell", "--url", server.url, "-c", ":help")
    for command in SHELL_COMMANDS.values():
        assert command.usage in listed.out
        assert command.summary in listed.out
    each = kgserve("shell", "--url", server.url, "-c", "\n".join(f":help {name}" for name in SHELL_COMMANDS))
    for command in SHELL_COMMANDS.values():
        assert f"{command.usage}\n  {command.summary}\n" in each.out
        assert command.details in each.out
    assert kgserve("shell", "--url", server.url, "-c", ":help nonsense").code == 1


def test_every_mode_has_a_writer() -> None:
    assert set(formats.WRITERS) == set(formats.MODES)


def test_shell_layers() -> None:
    """Only one module of the shell calls the server, and only one prints."""
    folder = Path(formats.__file__).parent
    assert [each.name for each in folder.glob("*.py") if "import Client" in each.read_text()] == ["session.py"]
