"""Events within the process: from the store's own feed, for as long as somebody takes them."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable
from typing import Any

from kgserve.client.following import PATIENCE, Event
from kgserve.decoding import json_decoder
from kgserve.library.folder import Handle
from kgserve.model.events import REST, Position, Selection, parse_kinds, parse_position, parse_positions
from kgserve.model.requests import check_store_name
from kgserve.ops.events import Delivery, EventReader, Wanted

LOOK_UP_SECONDS = 0.5
"""A listener that waits looks so often whether its library was closed."""

_read = json_decoder(dict[str, Any]).decode


def of_store(
    handle: Handle,
    store: str,
    *,
    since: int | None = None,
    last_event_id: str | None = None,
    kinds: Iterable[str] = (),
    types: Iterable[str] = (),
    give_up_after: float | None = PATIENCE,  # noqa: ARG001 - no server can be lost
) -> Generator[Event]:
    """The events of one store."""
    at = {check_store_name(store): parse_position(last_event_id, "last_event_id")} if last_event_id else _after(since)
    return _begun(handle, Wanted((store,), at, _selection(kinds, types), prefixed=False))


def of_stores(
    handle: Handle,
    stores: Iterable[str] = (),
    *,
    since: int | None = None,
    last_event_id: str | None = None,
    kinds: Iterable[str] = (),
    types: Iterable[str] = (),
    give_up_after: float | None = PATIENCE,  # noqa: ARG001 - no server can be lost
) -> Generator[Event]:
    """The events of several stores, or of all that there are and will be."""
    names = tuple(check_store_name(name) for name in _names(stores)) or None
    at = parse_positions(last_event_id, "last_event_id") if last_event_id else _after(since)
    return _begun(handle, Wanted(names, at, _selection(kinds, types)))


def _begun(handle: Handle, wanted: Wanted) -> Generator[Event]:
    """A listener that hears of what happens from now on, not only from when it is first asked."""
    news = threading.Event()
    with handle.use() as opened:
        reader = EventReader(opened.pool, wanted, news.set)
        try:
            reader.open()
        except BaseException:
            reader.close()
            raise
    listener = _listen(handle, reader, news)
    next(listener)
    return listener  # pyright: ignore[reportReturnType] - the one None has been taken


def _listen(handle: Handle, reader: EventReader, news: threading.Event) -> Generator[Event | None]:
    try:
        yield None
        last = ""
        while not handle.closed:
            news.clear()
            with handle.use():
                page = reader.read()
            for each in page.deliveries:
                last = each.id or last
                yield _event(each, last)
            if page.ended:
                return
            while page.idle and not handle.closed and not news.wait(LOOK_UP_SECONDS):
                pass
    finally:
        reader.close()


def _event(delivery: Delivery, place: str) -> Event:
    data = _read(delivery.data)
    return Event(
        id=place,
        kind=delivery.kind,
        store=data["store"],
        sequence=data["sequence"],
        time=data["time"],
        data=data,
    )


def _selection(kinds: Iterable[str], types: Iterable[str]) -> Selection:
    wanted, named = _names(kinds), _names(types)
    return Selection(parse_kinds(wanted) if wanted else None, frozenset(named) if named else None)


def _names(given: Iterable[str]) -> list[str]:
    """Names, which may also stand in one text with commas between them, each once."""
    parts = given.split(",") if isinstance(given, str) else given
    return [part for part in dict.fromkeys(parts) if part]


def _after(since: int | None) -> dict[str, Position]:
    return {} if since is None else {REST: Position.after(since)}
