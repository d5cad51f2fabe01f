"""``kgserve create``, ``drop`` and ``settings``: stores of a running server, and what is chosen for them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import click
import msgspec

from kgserve.cli.remote import Refused, connect, server_options
from kgserve.cli.terminal import Column, as_json_option, show_json, show_table
from kgserve.decoding import decode_json
from kgserve.model.stores import StoreSettings, StoreSettingsAnswer

SETTING_COLUMNS = (Column("Setting"), Column("Value"))
_USUAL = StoreSettings()
_NAMES = StoreSettings.__struct_fields__


class Choice(NamedTuple):
    """A setting, by the names that lead to it, and what it is to be."""

    path: list[str]
    value: Any


class _Choices(click.ParamType[Choice]):
    """Choices as people type them."""

    name = "SETTING=VALUE"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> Choice:
        setting, equals, text = value.partition("=")
        if not equals or not setting:
            self.fail(f"{value!r} is no SETTING=VALUE, such as history=90", param, ctx)
        path = setting.split(".")
        if path[0] not in _NAMES:
            self.fail(f"there is no setting {path[0]!r}; there are {', '.join(_NAMES)}", param, ctx)
        return Choice(path, _value(setting, text))


def _value(setting: str, text: str) -> Any:
    """What is meant: JSON where it is any, a list with commas for what is a list, else the text itself."""
    if setting == "name":
        return text
    try:
        return decode_json(text)
    except msgspec.MsgspecError:
        is_list = isinstance(getattr(_USUAL, setting, None), tuple)
        return list(filter(None, map(str.strip, text.split(",")))) if is_list else text


def _request(chosen: Sequence[Choice]) -> dict[str, Any]:
    """The settings that were named, those of `memory` below it."""
    body: dict[str, Any] = {}
    for path, value in chosen:
        place = body
        for name in path[:-1]:
            place = cast("dict[str, Any]", place.setdefault(name, {}))
        place[path[-1]] = value
    return body


_chosen = click.argument("chosen", metavar="[SETTING=VALUE]...", nargs=-1, type=_Choices())


@click.command()
@click.argument("store")
@_chosen
@server_options
def create(store: str, *, chosen: tuple[Choice, ...], server: str | None, data_dir: str | None) -> None:
    """Create STORE, empty, with settings such as history=90 or memory.dedup=off.

    The first import or write creates a store as well, with the usual settings. The exit code is 1 if it is there.
    """
    fields = _request(chosen)
    if "name" in fields:
        fields["display_name"] = fields.pop("name")
    with connect(server, data_dir) as client:
        done = client.create(store, **fields)
    if not done.created:
        raise Refused(f"there is a store {store!r} already, which keeps its settings; `kgserve settings` changes them")
    click.echo(f"{store}: created")


@click.command()
@click.argument("store")
@_chosen
@as_json_option
@server_options
def settings(
    store: str,
    *,
    chosen: tuple[Choice, ...],
    as_json: bool,
    server: str | None,
    data_dir: str | None,
) -> None:
    """Show the settings of STORE, or change those that are given, such as history=90 or kind_whitelist=note,person.

    A VALUE is JSON, a list with commas, or a text; an empty one clears. Those of memories begin with memory., such as
    memory.half_life_days=null.
    """
    with connect(server, data_dir) as client:
        there = client.store(store)
        found = there.update_settings(**_request(chosen)) if chosen else there.settings()
    if as_json:
        show_json(found)
        return
    show_table(SETTING_COLUMNS, _rows(found))


@click.command()
@click.argument("store")
@click.option("--yes", is_flag=True, help="Do not ask first.")
@server_options
def drop(store: str, *, yes: bool, server: str | None, data_dir: str | None) -> None:
    """Delete STORE and everything in it for good: only a backup brings it back.

    On a terminal its name has to be typed again; elsewhere --yes is needed.
    """
    with connect(server, data_dir) as client:
        if not yes:
            _ask(store, client.store(store).stats().nodes)
        inbound = client.drop(store, confirm=store).inbound
    click.echo(f"{store}: dropped" + (f"; edges of other stores that lead there still: {inbound:,}" if inbound else ""))


def _ask(store: str, nodes: int) -> None:
    """Have the name typed once more. Raises UsageError where nobody can, Abort for another."""
    if not sys.stdin.isatty():
        raise click.UsageError("nobody can be asked here; --yes drops it")
    question = f"{store} has {nodes:,} nodes. Its name again, to drop it"
    if click.prompt(question, default="", show_default=False) != store:
        raise click.ClickException("that is another name; nothing was dropped")


def _rows(found: StoreSettingsAnswer) -> Iterator[tuple[str, str]]:
    shown = {name: getattr(found, name) for name in StoreSettings.__struct_fields__ if name != "memory"}
    below = {f"memory.{name}": value for name, value in msgspec.structs.asdict(found.memory).items()}
    for name, value in (shown | below).items():
        yield name, value if isinstance(value, str) else msgspec.json.encode(value).decode()
