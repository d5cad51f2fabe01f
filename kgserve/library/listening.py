"""Events within the process: from the store's own feed, for as long as somebody takes them."""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import Any

from kgserve.client.following import Event, Following
from kgserve.decoding import json_decoder
from kgserve.library.folder import Handle
from kgserve.model.events import REST, Position, Selection, parse_kinds, parse_position, parse_positions
from kgserve.model.requests import check_store_name
from kgserve.ops.events import Delivery, EventReader, Wanted

LOOK_UP_SECONDS = 0.5
"""A listener that waits looks so often whether its library was closed, or it is to end."""

_read = json_decoder(dict[str, Any]).decode


def listen(handle: Handle, listener: Following) -> Generator[Event]:
    """The events of one store, of several, or of all that there are and will be."""
    query, last = listener.query, listener.last_id
    selection = _selection(_names(query["kinds"]), _names(query["types"]))
    if listener.store is not None:
        store = check_store_name(listener.store)
        at = {store: parse_position(last, "last_event_id")} if last else _after(listener.since)
        return _begun(handle, Wanted((store,), at, selection, prefixed=False), listener)
    names = tuple(check_store_name(name) for name in _names(query["store"])) or None
    at = parse_positions(last, "last_event_id") if last else _after(listener.since)
    return _begun(handle, Wanted(names, at, selection), listener)


def _begun(handle: Handle, wanted: Wanted, listener: Following) -> Generator[Event]:
    """A listener that hears of what happens from now on, not only from when it is first asked."""
    news = threading.Event()
    with handle.use() as graphs:
        reader = EventReader(graphs, wanted, news.set)
        try:
            reader.open()
        except BaseException:
            reader.close()
            raise
    listening = _listen(handle, reader, news, listener)
    next(listening)
    return listening  # pyright: ignore[reportReturnType] - the one None has been taken


def _listen(handle: Handle, reader: EventReader, news: threading.Event, listener: Following) -> Generator[Event | None]:
    try:
        yield None
        last = ""
        while not (handle.closed or listener.ended):
            news.clear()
            with handle.use():
                page = reader.read()
            for each in page.deliveries:
                last = each.id or last
                yield _event(each, last)
            if page.ended:
                return
            while page.idle and not (handle.closed or listener.ended or news.wait(LOOK_UP_SECONDS)):
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


def _selection(kinds: list[str], types: list[str]) -> Selection:
    return Selection(parse_kinds(kinds) if kinds else None, frozenset(types) if types else None)


def _names(given: str | None) -> list[str]:
    """Names with commas between them, each once."""
    return [part for part in dict.fromkeys((given or "").split(",")) if part]


def _after(since: int | None) -> dict[str, Position]:
    return {} if since is None else {REST: Position.after(since)}
