"""Writes the tables of commands, settings and make targets in docs/ and CONTRIBUTING.md from what they describe."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import msgspec

from kgserve.cli.mcp import EDITORS
from kgserve.cli.options import SETTINGS_WITHOUT_OPTION, description, option_names, variable_name
from kgserve.cli.root import kgserve
from kgserve.cli.shell.commands import SHELL_COMMANDS
from kgserve.platform.settings import Settings
from scripts.conformance import difference_rows, requirement_rows, summary_rows
from scripts.pages import DOCS, PAPERS, TOP

TABLE = re.compile(r"<!-- table: (\w+) -->\n.*?<!-- end -->", re.DOTALL)
SETTINGS = {field.name: description(field) for field in msgspec.structs.fields(Settings)}


def written(text: str) -> str:
    """A page's text with every table written anew."""
    tables = {"commands": _commands(), "shell": _shell(), "settings": _settings(), "targets": _targets()}
    tables["editors"] = _editors()
    tables["specifications"] = _table(("prefix", "specification", "requirements", "differences"), summary_rows())
    tables["differences"] = _table(("number", "the specification", "kgserve"), difference_rows())
    tables["requirements"] = _table(("number", "requirement"), requirement_rows())

    def table(found: re.Match[str]) -> str:
        return f"<!-- table: {found[1]} -->\n{tables[found[1]]}\n<!-- end -->"

    return TABLE.sub(table, text)


def tabled() -> list[Path]:
    """The pages that hold such tables."""
    return [page for page in (*sorted(DOCS.glob("*.md")), *PAPERS) if TABLE.search(page.read_text())]


def _editors() -> str:
    form = {True: "TOML", False: "JSON"}
    rows = ((f"`{each.name}`", each.place, f"{form[each.toml]}, `{each.root}`") for each in EDITORS.values())
    return _table(("`--client`", "where it belongs", "form"), rows)


def _settings() -> str:
    rows = (
        (
            f"`{option_names(field.name)[0]}`" if field.name not in SETTINGS_WITHOUT_OPTION else "",
            f"`{variable_name(field.name)}`",
            f"`{field.default}`" if field.default not in {"", None} else "",
            description(field),
        )
        for field in msgspec.structs.fields(Settings)
    )
    return _table(("option", "variable", "default", "meaning"), rows)


def _commands() -> str:
    return _table(("command", "option", "what it does"), _command_rows())


def _command_rows() -> Iterator[tuple[str, ...]]:
    for name, command in _commands_of(kgserve, "kgserve"):
        arguments = [
            each.make_metavar(click.Context(command)) for each in command.params if isinstance(each, click.Argument)
        ]
        yield f"`{' '.join([name, *arguments])}`", "", _first_sentence(command)
        options = [each for each in command.params if isinstance(each, click.Option)]
        yield from _own_options(options)
        yield from _setting_options(options)


def _commands_of(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            if command.invoke_without_command:
                yield f"{path} {name}", command
            yield from _commands_of(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def _own_options(options: list[click.Option]) -> Iterator[tuple[str, ...]]:
    for option in options:
        if not _is_setting(option):
            yield "", ", ".join(f"`{each}`" for each in option.opts), _first_line(option.help or "")


def _is_setting(option: click.Option) -> bool:
    return (option.help or "").startswith(SETTINGS.get(option.name or "", "\0"))


def _setting_options(options: list[click.Option]) -> Iterator[tuple[str, ...]]:
    names = [option_names(option.name)[0] for option in options if _is_setting(option)]
    if len(names) == len(SETTINGS):
        yield "", "every setting", "as under [Settings](settings.md)"
    elif names:
        yield "", ", ".join(f"`{each}`" for each in names), "as under [Settings](settings.md)"


def _shell() -> str:
    rows = (
        (f"`{_escaped(each.usage)}`", _escaped(f"{each.summary} {each.details}".strip()))
        for each in SHELL_COMMANDS.values()
    )
    return _table(("command of the shell", "what it does"), rows)


def _first_sentence(command: click.Command) -> str:
    return _first_line((command.help or "").split("\n\n")[0].replace("\n", " "))


def _first_line(text: str) -> str:
    return _escaped(text.split("  [", maxsplit=1)[0].strip())


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def _targets() -> str:
    lines = (TOP / "Makefile").read_text().splitlines()
    found = (re.match(r"([a-z-]+):.*?## (.*)", line) for line in lines)
    return _table(("target", "what it does"), ((f"`make {each[1]}`", each[2]) for each in found if each))


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Write every page that holds one."""
    for page in tabled():
        page.write_text(written(page.read_text()))


if __name__ == "__main__":
    main()
