"""Write the tables between `<!-- table: NAME -->` and `<!-- end -->`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import fill
from urllib.parse import quote

import click
import msgspec

from kgserve.cli.editor_mcp_configs import (
    EDITORS,
    INSTALL_LINK_EDITORS,
    build_editor_install_link,
    build_server_entry,
)
from kgserve.cli.options import (
    SETTINGS_WITHOUT_OPTION,
    setting_description,
    setting_environment_variable,
    setting_option_names,
)
from kgserve.cli.root import kgserve_root_command
from kgserve.cli.shell.commands import SHELL_COMMANDS
from kgserve.platform.settings import ENVIRONMENT_PREFIX, Settings
from scripts import limits, reference
from scripts.conformance import difference_rows, requirement_rows, summary_rows
from scripts.pages import DOCS, PAPERS, TOP
from scripts.reference import escape_cell, table

CONNECTION_OPTIONS = frozenset({"server", "key", "data_dir", "as_json"})
"""Options that docs/command-line.md explains once, above its table."""
DEFAULTS_OF_MEMORIES = "memory_"
"""Prefix of settings that docs/memory-reference.md lists as settings of a store."""
MAX_LINE_CHARS = 120
REQUIREMENTS = TOP / "tests" / "conformance" / "README.md"
TABLE = re.compile(r"<!-- table: (\w+) -->\n.*?<!-- end -->", re.DOTALL)
SETTINGS = {field.name: setting_description(field) for field in msgspec.structs.fields(Settings)}


def fill_tables(text: str) -> str:
    """Return a page's text with every table up to date."""
    return TABLE.sub(lambda found: f"<!-- table: {found[1]} -->\n{TABLES[found[1]]()}\n<!-- end -->", text)


def pages_with_tables() -> list[Path]:
    """Return the pages that hold such tables."""
    return [page for page in (*sorted(DOCS.glob("*.md")), *PAPERS, REQUIREMENTS) if TABLE.search(page.read_text())]


def _editors() -> str:
    form = {True: "TOML", False: "JSON"}
    rows = ((f"`{each.name}`", each.place, f"{form[each.toml]}, `{each.root}`") for each in EDITORS.values())
    return table(("`--client`", "where it belongs", "form"), rows)


def _install_links() -> str:
    command = ["uvx", "kgserve", "mcp", "--data", "${userHome}/kgserve-data", "--store", "memory", "--tools", "memory"]
    links = {
        name: build_editor_install_link(EDITORS[name], build_server_entry(EDITORS[name], command))
        for name in INSTALL_LINK_EDITORS
    }
    links["vscode"] = f"https://insiders.vscode.dev/redirect?url={quote(links['vscode'], safe='')}"
    return table(("editor", "link"), ((f"`{name}`", f"[Add kgserve]({link})") for name, link in links.items()))


def _settings() -> str:
    rows = (
        (
            _setting_names(field.name),
            f"`{field.default}`" if field.default not in {"", None} else "",
            setting_description(field),
        )
        for field in msgspec.structs.fields(Settings)
        if not field.name.startswith(DEFAULTS_OF_MEMORIES)
    )
    return table(("option", "default", "meaning"), rows)


def _setting_names(name: str) -> str:
    """Return a setting's option, and its variable if that does not follow from the option."""
    variable = setting_environment_variable(name)
    if name in SETTINGS_WITHOUT_OPTION:
        return f"`{variable}`"
    option = setting_option_names(name)[0]
    follows = variable == ENVIRONMENT_PREFIX + option.removeprefix("--").replace("-", "_").upper()
    return f"`{option}`" if follows else f"`{option}`, `{variable}`"


def _commands() -> str:
    commands = dict(_commands_of(kgserve_root_command, "kgserve"))
    return "\n\n".join(
        _command_text(name, each, commands.get(name.rpartition(" ")[0])) for name, each in commands.items()
    )


def _command_text(name: str, command: click.Command, group: click.Command | None) -> str:
    """Return a command's usage and purpose, and a list of its options; those of its group are named by the group."""
    context = click.Context(command)
    arguments = [each.make_metavar(context) for each in command.params if isinstance(each, click.Argument)]
    text = f"### `{' '.join([name, *arguments])}`\n\n{_wrap(_first_sentence(command))}"
    listed = _option_lines(command)
    inherited = _option_lines(group) if group else []
    if inherited and set(inherited) <= set(listed):
        listed = [*(line for line in listed if line not in inherited), f"- the options of `{name.rpartition(' ')[0]}`."]
    return "\n\n".join([text, "\n".join(listed)] if listed else [text])


def _option_lines(command: click.Command) -> list[str]:
    options = [
        each for each in command.params if isinstance(each, click.Option) and each.name not in CONNECTION_OPTIONS
    ]
    return [_wrap(f"- {names}: {meaning}") for names, meaning in (*_own_options(options), *_setting_options(options))]


def _wrap(text: str) -> str:
    return fill(text, MAX_LINE_CHARS, subsequent_indent="  " * text.startswith("-"), break_on_hyphens=False)


def _commands_of(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            if command.invoke_without_command:
                yield f"{path} {name}", command
            yield from _commands_of(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def _own_options(options: list[click.Option]) -> Iterator[tuple[str, str]]:
    for option in options:
        if not _is_setting(option):
            yield ", ".join(f"`{each}`" for each in option.opts), _first_line(option.help or "")


def _is_setting(option: click.Option) -> bool:
    return (option.help or "").startswith(SETTINGS.get(option.name or "", "\0"))


def _setting_options(options: list[click.Option]) -> Iterator[tuple[str, str]]:
    names = [setting_option_names(option.name)[0] for option in options if _is_setting(option)]
    if len(names) > len(SETTINGS) // 2:
        yield "every setting with an option", "see [Settings](settings.md)."
    elif names:
        yield ", ".join(f"`{each}`" for each in names), "see [Settings](settings.md)."


def _shell() -> str:
    rows = (
        (f"`{escape_cell(each.usage)}`", escape_cell(f"{each.summary} {each.details}".strip()))
        for each in SHELL_COMMANDS.values()
    )
    return table(("command of the shell", "what it does"), rows)


def _first_sentence(command: click.Command) -> str:
    return _first_line((command.help or "").split("\n\n")[0].replace("\n", " "))


def _first_line(text: str) -> str:
    return escape_cell(text.split("  [", maxsplit=1)[0].strip())


def _specifications() -> str:
    return table(("prefix", "specification", "requirements", "differences"), summary_rows())


def _differences() -> str:
    return table(("number", "the specification", "kgserve"), difference_rows())


def _requirements() -> str:
    return table(("number", "requirement"), requirement_rows())


TABLES: dict[str, Callable[[], str]] = {
    "commands": _commands,
    "shell": _shell,
    "settings": _settings,
    "editors": _editors,
    "install_links": _install_links,
    "specifications": _specifications,
    "differences": _differences,
    "requirements": _requirements,
    "setting_limits": limits.list_setting_limits,
    "fixed_limits": limits.list_fixed_limits,
    "toolsets": reference.list_toolsets,
    "operations": reference.list_operations,
    "memory_operations": reference.list_memory_operations,
    "graph_tools": reference.list_graph_tools,
    "memory_tools": reference.list_memory_tools,
    "entity_memory_tools": reference.list_entity_memory_tools,
    "client_methods": reference.list_client_methods,
    "store_methods": reference.list_store_methods,
}


def main() -> None:
    """Write every page that holds a table."""
    for page in pages_with_tables():
        page.write_text(fill_tables(page.read_text()))


if __name__ == "__main__":
    main()
