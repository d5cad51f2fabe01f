"""Who wants to be told of which resources: sessions of the handshake era, and streams of listeners of the stateless."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from mcp import MCPError, types

from kgserve.access.authentication import RequestContext
from kgserve.mcp.uris import Place
from kgserve.mcp.watching import MAX_STORES, News, Watching

MAX_SUBSCRIPTIONS = 100
"""Resources that one session or listener may subscribe to."""
MAX_SUBSCRIPTIONS_OF_A_KEY = 1_000


class Subscriber:
    """A session or a listener, with what it subscribed to."""

    def __init__(self, visit: RequestContext) -> None:
        self.visit = visit
        self.places: dict[str, Place] = {}

    def concerned(self, news: News) -> list[str]:
        """The URIs, as they were given, of what has changed; none for a key that is no longer valid."""
        found = [uri for uri, place in self.places.items() if self._is_news(place, news)]
        return found if found and self.visit.still_valid else []

    def _is_news(self, place: Place, news: News) -> bool:
        sees = self.visit.caller.sees
        if place.store is None:
            return any(map(sees, news.announced))
        return place in news.changed and sees(place.store)


class Subscriptions:
    """All of them, within what a session and a key may have."""

    def __init__(self, watching: Watching) -> None:
        self._watching = watching
        self._of_keys: Counter[str] = Counter()

    async def add(self, subscriber: Subscriber, places: Mapping[str, Place]) -> None:
        """Have a subscriber told of more, from now on. Raises MCPError when it would be too many."""
        new = {uri: place for uri, place in places.items() if uri not in subscriber.places}
        self._check(subscriber, new)
        subscriber.places |= new
        if (key := subscriber.visit.caller.key_id) is not None:
            self._of_keys[key] += len(new)
        await self._watching.add(new.values())

    def remove(self, subscriber: Subscriber, uris: Collection[str]) -> None:
        """Have a subscriber no longer told of some; those that it did not subscribe to are passed over."""
        gone = [subscriber.places.pop(uri) for uri in list(uris) if uri in subscriber.places]
        if (key := subscriber.visit.caller.key_id) is not None:
            self._of_keys[key] -= len(gone)
            self._of_keys += Counter()  # keeps those that are positive
        self._watching.remove(gone)

    def end(self, subscriber: Subscriber) -> None:
        """It is told of nothing any longer."""
        self.remove(subscriber, subscriber.places)

    def _check(self, subscriber: Subscriber, new: Mapping[str, Place]) -> None:
        if len(subscriber.places) + len(new) > MAX_SUBSCRIPTIONS:
            raise _too_many(f"a session or listener may subscribe to {MAX_SUBSCRIPTIONS} resources")
        key = subscriber.visit.caller.key_id
        if key is not None and self._of_keys[key] + len(new) > MAX_SUBSCRIPTIONS_OF_A_KEY:
            raise _too_many(f"a key may have {MAX_SUBSCRIPTIONS_OF_A_KEY:,} subscriptions to resources")
        if not self._watching.has_room(new.values()):
            raise _too_many(f"resources of {MAX_STORES} stores may be subscribed to at once")


def _too_many(limit: str) -> MCPError:
    return MCPError(types.INTERNAL_ERROR, f"{limit}; end another first")
