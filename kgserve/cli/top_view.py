"""How ``kgserve top`` looks: a head of the server's numbers above a table of its open stores."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kgserve.cli.terminal import as_size
from kgserve.cli.top_numbers import Order, Overview, StoreLine, ordered

_FACT_WIDTH = 19
_OTHER_LINES = 7
_NUMBER_WIDTH = 7
_GAP = 3
_LEAST_NAME = 8
_UNKNOWN = "-"


class _Column(NamedTuple):
    title: str
    width: int
    """Characters from which on a terminal has room for it."""
    shown: Callable[[StoreLine], str]


_COLUMNS = (
    _Column("Writes/s", 0, lambda store: f"{store.writes:,.1f}"),
    _Column("Lag", 0, lambda store: f"{store.lag:,}"),
    _Column("Queue", 50, lambda store: f"{store.queue:,}"),
    _Column("Engine", 65, lambda store: as_size(store.engine) if store.engine else ""),
    _Column("Nodes", 60, lambda store: f"{store.nodes:,}"),
    _Column("Edges", 80, lambda store: f"{store.edges:,}"),
    _Column("Waiting", 95, lambda store: f"{store.waiting:,}"),
    _Column("Lost", 95, lambda store: f"{store.lost:,}"),
    _Column("Sequence", 105, lambda store: f"{store.sequence:,}"),
    _Column("Journal", 115, lambda store: as_size(store.journal)),
    _Column("Check", 125, lambda store: {None: "", True: "agreed", False: "FAILED"}[store.check]),
)


class Shown(NamedTuple):
    """A frame: the server's address, what is known of it, the order of stores, and what is wrong at the moment."""

    url: str
    overview: Overview | None
    order: Order
    trouble: str | None = None
    keys: bool = True


def frame(shown: Shown, width: int, height: int | None) -> RenderableType:
    """A frame for a screen of so many characters; without ``height`` all stores are in it."""
    parts: list[RenderableType] = [_title(shown)]
    if shown.trouble is not None:
        parts.append(Text(shown.trouble, style="bold red", overflow="ellipsis", no_wrap=True))
    if shown.overview is None:
        parts.append(Text("Waiting for the first answer …" if shown.trouble is None else ""))
        return Group(*parts)
    head = _head(shown.overview, max(min(width // _FACT_WIDTH, 5), 1))
    room = None if height is None else max(height - head.row_count - _OTHER_LINES, 1)
    parts += [head, _table(shown.overview.stores, shown.order, width, room)]
    if shown.keys:
        parts.append(
            Text(f"q quits · s sorts by another column (now: {shown.order})", style="dim", overflow="ellipsis")
        )
    return Group(*parts)


def _title(shown: Shown) -> Text:
    version = f" {shown.overview.version}" if shown.overview else ""
    text = Text(f"kgserve{version} at {shown.url}", style="bold", overflow="ellipsis", no_wrap=True)
    if shown.overview and shown.overview.started:
        text.append(f", up {_span(time.time() - shown.overview.started)}", style="")
    return text


def _head(seen: Overview, beside: int) -> Table:
    """Pairs of a name and a value, so many ``beside`` each other."""
    facts = (
        ("requests/s", _rounded(seen.requests)),
        ("errors/s", _rounded(seen.errors)),
        ("p95", _UNKNOWN if seen.p95 is None else f"{seen.p95 * 1000:,.1f} ms"),
        ("in progress", _whole(seen.in_progress)),
        ("writes/s", _rounded(seen.writes)),
        ("streams", _whole(seen.streams)),
        ("memory", _UNKNOWN if seen.memory is None else as_size(int(seen.memory))),
        ("CPU", _UNKNOWN if seen.cpu is None else f"{seen.cpu * 100:,.0f} %"),
        ("threads", _whole(seen.threads)),
        ("engines", f"{_whole(seen.engines)}/{_whole(seen.most_engines)}"),
        ("engine memory", as_size(int(seen.engine_memory))),
        ("slow", _whole(seen.slow)),
    )
    grid = Table.grid(padding=(0, 2))
    for first in range(0, len(facts), beside):
        some = facts[first : first + beside]
        grid.add_row(*(Text.assemble((f"{name} ", "dim"), value, no_wrap=True) for name, value in some))
    return grid


def _table(stores: Sequence[StoreLine], order: Order, width: int, room: int | None) -> Group | Table:
    """The first stores in an order, as many as there is ``room`` for, with the columns that the width has room for."""
    stores = ordered(stores, order)
    most = len(stores) if room is None else room
    table = Table(box=box.SIMPLE_HEAD, expand=False)
    columns = [column for column in _COLUMNS if width >= column.width]
    others = sum(max(len(column.title), _NUMBER_WIDTH) + _GAP for column in columns)
    table.add_column("Store", overflow="ellipsis", no_wrap=True, max_width=max(width - others - _GAP, _LEAST_NAME))
    for column in columns:
        table.add_column(column.title, justify="right", no_wrap=True)
    for store in stores[:most]:
        table.add_row(Text(store.name), *(Text(column.shown(store)) for column in columns), style=_style(store))
    hidden = len(stores) - most
    return Group(table, Text(f"… and {hidden} more", style="dim")) if hidden > 0 else table


def _style(store: StoreLine) -> str:
    return "bold red" if store.check is False else ""


def _rounded(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:,.1f}"


def _whole(value: Any) -> str:
    return _UNKNOWN if value is None else f"{value:,.0f}"


def _span(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
