"""Command-line options made from the settings table, so that the two cannot differ."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import click
import msgspec

from kgserve import settings
from kgserve.settings import PREFIX, Settings

Function = TypeVar("Function", bound=Callable[..., Any])

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


def settings_options(*fields: str) -> Callable[[Function], Function]:
    """Add an option for each of ``fields`` (default: every setting); one that is not given is passed as None."""
    known = msgspec.structs.fields(Settings)
    chosen = [field for field in known if not fields or field.name in fields]

    def add(function: Function) -> Function:
        for field in reversed(chosen):
            function = _option(field)(function)
        return function

    return add


def load(values: dict[str, Any]) -> Settings:
    """Settings from option values, the environment and the defaults, in this order."""
    return settings.load(values)


def _option(field: msgspec.structs.FieldInfo) -> Callable[[Function], Function]:
    return click.option(
        *option_names(field.name),
        field.name,
        type=_click_type(get_args(field.type)[0]),
        default=None,
        help=f"{description(field)}.  [{variable_name(field.name)}; default: {field.default}]",
    )


def _click_type(kind: Any) -> click.ParamType[Any]:
    if get_origin(kind) is Literal:
        return click.Choice([str(choice) for choice in get_args(kind)])
    return {int: click.INT, float: click.FLOAT, Path: click.Path()}.get(kind, click.STRING)
