from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import msgspec
import pytest

from kgserve import __version__
from kgserve.cli.options import CLIENT_SETTINGS, SETTINGS_WITHOUT_OPTION, setting_option_names
from kgserve.cli.root import COMMAND_GROUPS
from kgserve.cli.root import kgserve_root_command as group
from kgserve.errors import InvalidInput
from kgserve.platform.settings import Settings, load_settings
from tests.cli.running import kgserve

FIELDS = msgspec.structs.fields(Settings)


def test_every_setting_is_an_option_of_serve() -> None:
    options = {option.name: option for option in group.commands["serve"].params if isinstance(option, click.Option)}
    of_serve = [field for field in FIELDS if field.name not in CLIENT_SETTINGS | SETTINGS_WITHOUT_OPTION]
    assert set(options) == {field.name for field in of_serve}
    for field in of_serve:
        assert options[field.name].opts == list(setting_option_names(field.name))
        assert options[field.name].help


def test_the_option_wins_over_the_variable_and_the_variable_over_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KGSERVE_PORT", "9001")
    monkeypatch.setenv("KGSERVE_HOST", "127.0.0.9")
    monkeypatch.setenv("KGSERVE_DATA_DIR", "elsewhere")
    settings = load_settings({"port": 9002, "host": None, "data_dir": Path("here")})
    assert (settings.port, settings.host, settings.max_nodes) == (9002, "127.0.0.9", 10_000)
    assert settings.data_dir == Path("here")


def test_each_invalid_value_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KGSERVE_MAX_EDGES", "many")
    with pytest.raises(InvalidInput, match=r"--port.*KGSERVE_MAX_EDGES"):
        load_settings({"port": -1})


def test_help_names_the_variables() -> None:
    shown = kgserve("serve", "--help")
    assert shown.code == 0
    for field in FIELDS:
        assert (f"KGSERVE_{field.name.upper()} " in shown.out.replace(";", " ")) is (
            field.name not in CLIENT_SETTINGS | SETTINGS_WITHOUT_OPTION
        )


def test_versions() -> None:
    assert kgserve("version").out.splitlines()[0] == f"kgserve {__version__}"
    assert kgserve("--version").out == f"kgserve {__version__}\n"


def test_without_a_command_the_help_is_shown() -> None:
    shown = kgserve()
    assert shown.code == 2
    for name in group.commands:
        assert name in shown.out + shown.err


HEAVY = ("litestar", "uvicorn", "kuzu", "pyarrow", "numpy", "httpx", "rich", "asyncio")


@pytest.mark.parametrize(
    ("program", "avoided"),
    [
        ("import kgserve.cli.root as cli; list(cli.kgserve_root_command.commands.values())", HEAVY),
        ("from kgserve.__main__ import main; sys.argv = ['kgserve', '--version']; main()", (*HEAVY, "msgspec")),
        ("from kgserve.__main__ import main; sys.argv = ['kgserve', '--help']; main()", (*HEAVY, "msgspec")),
    ],
)
def test_the_command_line_imports_nothing_heavy(program: str, avoided: tuple[str, ...]) -> None:
    lines = ["import sys", f"try: {program}", f"finally: print([name for name in {avoided} if name in sys.modules])"]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("heading", COMMAND_GROUPS)
def test_the_help_lists_existing_commands_on_one_line_each(heading: str) -> None:
    for name, entry in COMMAND_GROUPS[heading].items():
        assert entry.import_command().name == name
        assert f"{name} {entry.summary}" in [" ".join(line.split()) for line in kgserve("--help").out.splitlines()]
