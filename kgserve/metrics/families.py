"""Numbers with names, as a scrape shows them, before anybody has written them down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from kgserve.metrics.instruments import Labels, Measured

Kind = Literal["counter", "gauge", "histogram"]


class Family(msgspec.Struct, frozen=True):
    """A metric: all values of one name. A counter's name is without its ``_total``."""

    name: str
    help: str
    kind: Kind
    labels: tuple[str, ...] = ()
    values: Mapping[Labels, float | Measured] = {}


def counter(name: str, text: str, labels: Iterable[str], values: Mapping[Labels, float]) -> Family:
    """What only grows while the server, or the store, stays up."""
    return Family(name, text, "counter", tuple(labels), values)


def gauge(name: str, text: str, labels: Iterable[str], values: Mapping[Labels, float]) -> Family:
    """What goes up and down."""
    return Family(name, text, "gauge", tuple(labels), values)


def histogram(name: str, text: str, labels: Iterable[str], values: Mapping[Labels, Measured]) -> Family:
    """How values are distributed."""
    return Family(name, text, "histogram", tuple(labels), values)


def single(name: str, text: str, kind: Literal["counter", "gauge"], value: float) -> Family:
    """One number without labels."""
    return Family(name, text, kind, (), {(): value})
