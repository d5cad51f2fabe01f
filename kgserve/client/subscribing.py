"""Handlers that are told of every write after its commit, in a thread of their own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Self

from kgserve.client.streams import events

if TYPE_CHECKING:
    from kgserve.client.blocking import Asker
    from kgserve.client.following import Event
    from kgserve.model.answers import Edge, Node
    from kgserve.model.stores import StoreSettings

CLOSE_SECONDS = 5.0
"""How long `Subscription.close` waits for the call of a handler that is under way."""

_log = logging.getLogger(__name__)


class WriteHandler:
    """What is called after a commit, for each row that it changed; override what is wanted. ``event`` tells the store.

    It can neither hold a write up nor make one fail: it is called in a thread of the subscription's own.
    """

    def on_node_written(self, node: Node, event: Event) -> None:
        """A node was made or got another version."""

    def on_edge_written(self, edge: Edge, event: Event) -> None:
        """An edge was made or changed, be it one into another store, which has ``to_graph``."""

    def on_graph_created(self, settings: StoreSettings, event: Event) -> None:
        """A store was made (``event.kind`` is `store_created`), or its settings were changed (`store_changed`)."""

    def on_event(self, event: Event) -> None:
        """Anything else: what is deleted, a write of very many rows, which is told of by counts, a store dropped."""


class Subscription:
    """A handler that is being told, until it is closed, or what tells it ends; use it in a `with` block, or close it.

    An exception of the handler ends it and is kept as ``error``. ``last_event_id`` is the place behind the last event
    that the handler has taken; another subscription goes on there.
    """

    def __init__(
        self,
        asker: Asker,
        handler: WriteHandler,
        stores: Iterable[str] = (),
        *,
        since: int | None = None,
        last_event_id: str | None = None,
    ) -> None:
        self.error: Exception | None = None
        self.last_event_id = last_event_id
        self._handler = handler
        self._calling = threading.RLock()
        self._following = events(stores, since=since, last_event_id=last_event_id)
        # Begun here, so that what is written from now on is told.
        self._events = asker.connection.events(self._following)
        threading.Thread(target=self._tell, name="kgserve-subscription", daemon=True).start()

    @property
    def active(self) -> bool:
        """Whether the handler is still being told."""
        return not self._following.ended

    def close(self) -> None:
        """Tell no more. Waits for a call that is under way, at most five seconds; within a handler it does not wait."""
        self._following.ended = True
        if self._calling.acquire(timeout=CLOSE_SECONDS):
            self._calling.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _tell(self) -> None:
        try:
            with self._events as told:
                for event in told:
                    with self._calling:
                        if self._following.ended:
                            return
                        if not self._taken(event):
                            return
        except Exception as error:  # noqa: BLE001 - of whatever kind, it is kept
            self._fail(error)
        finally:
            self._following.ended = True

    def _taken(self, event: Event) -> bool:
        try:
            self._dispatch(event)
        except Exception as error:  # noqa: BLE001 - the handler is somebody else's
            self._fail(error)
            return False
        self.last_event_id = event.id
        return True

    def _fail(self, error: Exception) -> None:
        self.error = error
        _log.error("a subscription has ended", exc_info=error)

    def _dispatch(self, event: Event) -> None:
        if (node := event.node) is not None:
            self._handler.on_node_written(node, event)
        elif (edge := event.edge) is not None:
            self._handler.on_edge_written(edge, event)
        elif (settings := event.settings) is not None:
            self._handler.on_graph_created(settings, event)
        else:
            self._handler.on_event(event)


def subscribe(
    asker: Asker,
    handler: WriteHandler,
    stores: Iterable[str] = (),
    *,
    since: int | None = None,
    last_event_id: str | None = None,
) -> Subscription:
    """Have a handler told of every write of some stores, or of all that there are and will be, after its commit.

    ``asker`` is a `Client`, or what `kgserve.open` gives. From now on, or after a sequence (0: from the beginning), or
    behind the ``last_event_id`` of another subscription. Raises what listening to events does.
    """
    return Subscription(asker, handler, stores, since=since, last_event_id=last_event_id)
