"""The stores of a pool as one caller sees them: those of others are not there.

Whatever is handed this instead of the pool obeys it without knowing: there is no other way to a store than a name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from kgserve.access.caller import Caller
from kgserve.errors import Conflict
from kgserve.model.requests import check_store_name
from kgserve.model.rows import LinkRow
from kgserve.model.stores import StoreSettings
from kgserve.store.feed import Feed
from kgserve.store.feeds import Feeds, NamedWake
from kgserve.store.inbound_view import InboundView
from kgserve.store.layout import Layout
from kgserve.store.pool import CreateIfMissing, StorePool
from kgserve.store.store import Store


def seen_by(pool: StorePool, caller: Caller) -> StorePool:
    """The pool with the caller's stores alone."""
    return pool if caller.sees_all else ScopedPool(pool, caller)


class ScopedPool(StorePool):
    """A view of ``whole``. It opens and closes nothing of its own, and raises Hidden for names that it hides."""

    def __init__(self, whole: StorePool, caller: Caller) -> None:
        # Not super().__init__: that would open a second pool. What is not defined below is not there, and a test looks.
        self._whole = whole
        self._caller = caller
        self.settings = whole.settings
        self.usual = whole.usual
        self.data_dir: Path = whole.data_dir
        self.companions = whole.companions
        self.observation = whole.observation
        self.inbound: InboundView = ScopedInbound(whole.inbound, caller.sees)
        self.feeds: Feeds = ScopedFeeds(whole.feeds, self._check, caller.sees)

    def acquire(self, name: str, *, create: CreateIfMissing | bool = False) -> Store:
        """As the pool's. Raises NotFound for a store of others."""
        self._check(name)
        try:
            return self._whole.acquire(name, create=create)
        except Conflict:
            self._hide_twin(name)
            raise

    def acquire_open(self, name: str) -> Store:
        """As the pool's. Raises NotFound for a store of others."""
        self._check(name)
        return self._whole.acquire_open(name)

    def release(self, store: Store) -> None:
        """As the pool's."""
        self._whole.release(store)

    def create(self, name: str, chosen: StoreSettings | None = None) -> bool:
        """As the pool's. Raises NotFound for a name that would not be the caller's."""
        self._check(name)
        wish = CreateIfMissing(chosen)
        with self.lease(name, create=wish):
            return wish.made

    def drop(self, name: str) -> None:
        """As the pool's. Raises NotFound for a store of others."""
        self._check(name)
        self._whole.drop(name)

    def names(self) -> list[str]:
        """The caller's stores, in order."""
        return [name for name in self._whole.names() if self._caller.sees(name)]

    def open_stores(self) -> dict[str, Store]:
        """Those of the caller's stores that are open now."""
        return {name: store for name, store in self._whole.open_stores().items() if self._caller.sees(name)}

    def layout(self, name: str) -> Layout:
        """As the pool's. Raises NotFound for a store of others."""
        self._check(name)
        return self._whole.layout(name)

    def staging(self, name: str) -> Path:
        """As the pool's. Raises NotFound for a name that would not be the caller's."""
        self._check(name)
        return self._whole.staging(name)

    def adopt(self, name: str, folder: Path) -> None:
        """As the pool's. Raises NotFound for a name that would not be the caller's."""
        self._check(name)
        try:
            self._whole.adopt(name, folder)
        except Conflict:
            self._hide_twin(name)
            raise

    def close(self) -> None:
        """Nothing: the pool belongs to who opened it."""

    def _check(self, name: str) -> None:
        check_store_name(name)
        self._caller.require_store(name)

    def _hide_twin(self, name: str) -> None:
        """A name that differs in case alone from that of a store of others cannot be had, and that is all to say."""
        if not self._whole.layout(name).exists and any(
            other.lower() == name.lower() and not self._caller.sees(other) for other in self._whole.names()
        ):
            raise Conflict(f"a store cannot be called {name!r}; choose another name") from None


class OpenStores(StorePool):
    """Of a pool only the stores that are open at the moment; to be had without blocking, or else NotOpen is raised."""

    def __init__(self, whole: StorePool) -> None:
        # As in ScopedPool.
        self._whole = whole
        self.settings = whole.settings

    def acquire(self, name: str, *, create: CreateIfMissing | bool = False) -> Store:  # noqa: ARG002 - one that is open is there
        """As `StorePool.acquire_open`."""
        return self._whole.acquire_open(name)

    def release(self, store: Store) -> None:
        """As the pool's."""
        self._whole.release(store)


class ScopedInbound(InboundView):
    """The links that lead into stores, of the stores that one caller ``sees``."""

    def __init__(self, whole: InboundView, sees: Callable[[str], bool]) -> None:
        # As in ScopedPool.
        self._whole = whole
        self._sees = sees

    def to(self, store: str, targets: Collection[str]) -> list[tuple[str, LinkRow]]:
        """As the view's, of the caller's stores alone."""
        return [each for each in self._whole.to(store, targets) if self._sees(each[0])]

    def counts(self, store: str) -> list[tuple[str, int]]:
        """As the view's, of the caller's stores alone."""
        return [each for each in self._whole.counts(store) if self._sees(each[0])]

    def known(self, store: str) -> list[tuple[str, int]]:
        """As the view's, of the caller's stores alone."""
        return [each for each in self._whole.known(store) if self._sees(each[0])]

    def position(self, stores: Collection[str]) -> dict[str, int]:
        """As the view's."""
        return self._whole.position(stores)


class ScopedFeeds(Feeds):
    """The feeds of a pool for one caller; ``check`` raises for the stores of others, which ``sees`` does not know."""

    def __init__(self, whole: Feeds, check: Callable[[str], None], sees: Callable[[str], bool]) -> None:
        self._whole = whole
        self._check = check
        self._sees = sees

    @property
    def turn(self) -> int:
        """As the feeds'. It moves for the stores of others as well, and shows nothing of them."""
        return self._whole.turn

    def of(self, store: str) -> Feed:
        """As the feeds'. Raises NotFound for a store of others."""
        self._check(store)
        return self._whole.of(store)

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        """As the feeds'."""
        return self._whole.listen(wake)

    def listen_by_name(self, wake: NamedWake) -> Callable[[], None]:
        """As the feeds', for the caller's stores alone."""

        def choose(store: str) -> None:
            if self._sees(store):
                wake(store)

        return self._whole.listen_by_name(choose)
