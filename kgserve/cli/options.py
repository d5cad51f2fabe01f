"""Command-line options made from the settings table, so that the two cannot differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import click
import msgspec

from kgserve.settings import PREFIX, SETTINGS_FIELDS, Settings

Function = TypeVar("Function", bound=Callable[..., Any])

NOT_OF_SERVE = frozenset({"key", "call_timeout", "tools", "answers"})
"""Settings of those who ask, not of the server."""

VARIABLES_ALONE = frozenset(
    {
        "llm_key",
        "webhook_secret",
        *(name for name in Settings.__struct_fields__ if name.startswith("memory_")),
    }
)
"""Settings of a server that have no option: a secret, which all would see there, and what new stores begin with."""

NAMES = {"data_dir": ("--data", "--data-dir"), "models_dir": ("--models", "--models-dir")}
"""Options that are not simply called like their setting."""


def option_names(field: str) -> tuple[str, ...]:
    """The option names of a setting, the documented one first."""
    return NAMES.get(field, (f"--{field.replace('_', '-')}",))


def variable_name(field: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + field.upper()


def description(field: msgspec.structs.FieldInfo) -> str:
    """What a setting means."""
    return str(get_args(field.type)[1].description)


def settings_options(*fields: str, **more: Any) -> Callable[[Function], Function]:
    """Add an option for each of ``fields`` (default: all of a server's); one that is not given is passed as None."""
    chosen = [
        field
        for field in SETTINGS_FIELDS
        if (field.name in fields if fields else field.name not in NOT_OF_SERVE | VARIABLES_ALONE)
    ]

    def add(function: Function) -> Function:
        for field in reversed(chosen):
            function = _option(field, more)(function)
        return function

    return add


def key_option(**more: Any) -> Callable[[Function], Function]:
    """The option ``--key``, of those who ask a server."""
    text = "Key to send; better given as the variable KGSERVE_KEY.  [default: the token of the data folder's server]"
    return click.option("--key", metavar="KEY", help=text, **more)


def keep(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """The callback of an option that `given` tells, so that no command needs to pass it on."""
    context.meta[f"kgserve.{parameter.name}"] = value
    return value


def given(option: str) -> Any:
    """What was given for such an option of the present command."""
    context = click.get_current_context(silent=True)
    return context.meta.get(f"kgserve.{option}") if context else None


def require_data(settings: Settings) -> None:
    """Raise ClickException when the data folder is not there: a name that was misspelt, most likely."""
    if not settings.data_dir.is_dir():
        raise click.ClickException(f"there is no data folder {settings.data_dir}")


def _option(field: msgspec.structs.FieldInfo, more: Mapping[str, Any]) -> Callable[[Function], Function]:
    return click.option(
        *option_names(field.name),
        field.name,
        type=_click_type(get_args(field.type)[0]),
        default=None,
        **_as_flag(field),
        help=f"{description(field)}.  [{variable_name(field.name)}; default: {_default_text(field.default)}]",
        **more,
    )


def _default_text(default: Any) -> str:
    if default is None or default == "":
        return "none"
    return str(default).lower() if isinstance(default, bool) else str(default)


def _as_flag(field: msgspec.structs.FieldInfo) -> dict[str, Any]:
    """What is off by default is turned on by its option alone, without a value."""
    return {"is_flag": False, "flag_value": "true"} if field.default is False else {}


def _click_type(kind: Any) -> click.ParamType[Any]:
    if get_origin(kind) is Literal:
        return click.Choice([str(choice) for choice in get_args(kind)])
    if kind is bool:
        return click.Choice(["true", "false"])
    return {int: click.INT, float: click.FLOAT, Path: click.Path()}.get(kind, click.STRING)
