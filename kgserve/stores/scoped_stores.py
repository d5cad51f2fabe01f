"""Handles to the stores of a data folder, filtered by what the caller may access."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from typing_extensions import override

from kgserve.errors import Conflict, Forbidden
from kgserve.platform.access.authentication import AuthenticatedCaller
from kgserve.platform.metrics.app_metrics_and_request_context import Telemetry
from kgserve.platform.settings import Settings
from kgserve.projections.inbound_cross_store_links import InboundLinkLookup
from kgserve.storage.changefeed import ChangeFeed, ChangeFeedLookup, NamedWakeCallback, WakeCallback
from kgserve.storage.data_folder_store_index import ClosedStoreIndexEntry
from kgserve.storage.model.node_edge_rows import CrossStoreLinkRow
from kgserve.storage.model.store_names import check_store_name
from kgserve.storage.model.store_settings import StoreSettings
from kgserve.storage.store_folder_layout import StoreLayout
from kgserve.stores.cluster_models import DrainAnswer, StoreLogRepairAnswer, StoreMoveAnswer
from kgserve.stores.local_placement import StorePlacement
from kgserve.stores.open_store import OpenStore


class StoreCreateIfMissingRequest:
    """Request to create a store with the ``chosen`` settings if missing; ``made`` is set to whether it was created.

    A ``provisional`` store that is still empty is removed at the next start, unless `OpenStore.confirm_creation` was
    called.
    """

    def __init__(self, chosen: StoreSettings | None = None, *, provisional: bool = False) -> None:
        self.chosen = chosen
        self.provisional = provisional
        self.made = False


class ReplicaReadPermission:
    """Permission to read from replicas that have applied commit ``at_least``.

    ``max_staleness`` is the age in seconds up to which they may answer; None for the server's setting. ``sequence`` is
    set to the last commit of the store that was read, and ``age`` to the age of the oldest replica, 0 for an owner.
    """

    def __init__(self, at_least: int = 0, max_staleness: float | None = None) -> None:
        self.at_least = at_least
        self.max_staleness = max_staleness
        self.sequence: int | None = None
        self.age = 0.0

    def record_read(self, store: OpenStore) -> None:
        """Record the commit and the age of a store that was read."""
        self.sequence = store.state.sequence
        self.age = max(self.age, store.commits.age)


def replica_of_any_age() -> ReplicaReadPermission:
    """Return the permission to open a replica whose age does not matter, for example because it is then updated."""
    return ReplicaReadPermission(max_staleness=math.inf)


class StoreRegistry(Protocol):
    """Registry of the stores of a data folder. Raises NotFound for stores missing or hidden from the caller."""

    settings: Settings
    """Settings of the server or of the program that opened the folder."""
    usual: StoreSettings
    """Default settings of new stores."""
    data_dir: Path
    placement: StorePlacement
    observation: Telemetry

    @property
    def inbound(self) -> InboundLinkLookup:
        """Index of links between stores, by target."""
        ...

    @property
    def feeds(self) -> ChangeFeedLookup:
        """Change feeds of the stores."""
        ...

    def acquire(
        self,
        name: str,
        *,
        create: StoreCreateIfMissingRequest | bool = False,
        replica: ReplicaReadPermission | None = None,
    ) -> OpenStore:
        """Return the open store of this name; give it back with `release`. Blocks while it is being opened.

        With ``replica``, it may be a replica of another server's store that meets these conditions.
        """
        ...

    def acquire_open(self, name: str, *, replica: ReplicaReadPermission | None = None) -> OpenStore:
        """Return an open store like `acquire`, without blocking. Raises StoreNotOpen if the store is not open."""
        ...

    def release(self, store: OpenStore) -> None:
        """Release a store."""
        ...

    def release_or_discard(self, store: OpenStore) -> bool:
        """Release a store, and remove it if it has no commits and is unused. Return whether it was removed."""
        ...

    @contextmanager
    def lease(self, name: str, *, create: StoreCreateIfMissingRequest | bool = False) -> Generator[OpenStore]:
        """Acquire a store for the duration of a block."""
        store = self.acquire(name, create=create)
        try:
            yield store
        finally:
            self.release(store)

    def create(self, name: str, chosen: StoreSettings | None = None) -> bool:
        """Create a store with the ``chosen`` or default settings. Return False if it exists."""
        request = StoreCreateIfMissingRequest(chosen)
        with self.lease(name, create=request):
            return request.made

    def drop(self, name: str) -> None:
        """Close a store and delete its files. Raises NotFound, and Conflict while it is in use."""
        ...

    def move(self, name: str, node: str) -> StoreMoveAnswer:
        """Move a store to another node of the cluster, and wait up to 30 s until that node has opened it.

        Raises NotFound, ServedElsewhere, Conflict.
        """
        ...

    def drain(self, *, undo: bool) -> DrainAnswer:
        """Move all stores of this node to other nodes; with ``undo``, let it take over stores again.

        Raises Conflict.
        """
        ...

    def repair(self, name: str) -> StoreLogRepairAnswer:
        """Rebuild the log of a store in the cluster from its local files. Raises NotFound, Conflict and Unavailable."""
        ...

    def staging(self, name: str) -> Path:
        """Return a path in the data folder for preparing a store, to be passed to `adopt`.

        Leftovers are removed when the next pool opens.
        """
        ...

    def adopt(self, name: str, folder: Path) -> None:
        """Turn a prepared folder within the data folder into the named store. Raises Conflict if the store exists."""
        ...

    def peek_open(self, name: str) -> AbstractContextManager[OpenStore | None]:
        """Yield the named store if it is open, else None. Its idle time continues."""
        ...

    def reserve_if_closed(self, name: str) -> AbstractContextManager[bool]:
        """Yield whether a store is closed; if so, it stays closed within the block."""
        ...

    def find_closed(self, name: str) -> ClosedStoreIndexEntry | None:
        """Return what is known of a cleanly closed store, without reading its folder; None for any other store."""
        ...

    def require(self, name: str) -> None:
        """Raise NotFound unless the store exists."""
        ...

    def require_files(self, name: str) -> StoreLayout:
        """Return the layout of a store whose local files are up to date. Raises NotFound and ServedElsewhere."""
        ...

    def layout(self, name: str) -> StoreLayout:
        """Return the layout of a store, whether it exists or not."""
        ...

    def names(self) -> list[str]:
        """Return the names of all stores, sorted."""
        ...

    def local_store_names(self) -> list[str]:
        """Return the names of the stores that this server serves, sorted; in a cluster, those of this node."""
        ...

    def open_stores(self) -> Mapping[str, OpenStore]:
        """Return the stores that are open now, except replicas of other servers' stores."""
        ...


def scope_stores_to_caller(
    stores: StoreRegistry, caller: AuthenticatedCaller, copies: ReplicaReadPermission | None = None
) -> StoreRegistry:
    """Return the stores that a caller may access; with ``copies``, replicas may serve the reads."""
    return stores if caller.can_access_all and copies is None else CallerScopedStores(stores, caller, copies)


class CallerScopedStores(StoreRegistry):
    """The stores that one caller may access. Hidden stores are indistinguishable from missing ones."""

    def __init__(
        self, stores: StoreRegistry, caller: AuthenticatedCaller, copies: ReplicaReadPermission | None = None
    ) -> None:
        """Filter ``stores`` by what ``caller`` may access; with ``copies``, read from replicas too."""
        self.settings = stores.settings
        self.usual = stores.usual
        self.data_dir = stores.data_dir
        self.placement = stores.placement
        self.observation = stores.observation
        self._stores = stores
        self._caller = caller
        self._copies = copies
        self._inbound = CallerScopedInboundLinks(stores.inbound, caller.can_access)
        self._feeds = CallerScopedChangeFeeds(stores.feeds, self._check, caller.can_access)

    @property
    @override
    def inbound(self) -> InboundLinkLookup:
        return self._inbound

    @property
    @override
    def feeds(self) -> ChangeFeedLookup:
        return self._feeds

    @override
    def acquire(
        self,
        name: str,
        *,
        create: StoreCreateIfMissingRequest | bool = False,
        replica: ReplicaReadPermission | None = None,
    ) -> OpenStore:
        stores = self._visible(name)
        if create:
            self._check_quota(name)
        try:
            return self._note_read(stores.acquire(name, create=create, replica=self._copies or replica))
        except Conflict:
            self._hide_twin(name)
            raise

    def _check_quota(self, name: str) -> None:
        """Raise Forbidden if this would be one store too many for the caller."""
        most = self.settings.max_stores_per_key
        if most and not self.placement.exists(name) and len(self.names()) >= most:
            self.observation.stores_over_quota += 1
            raise Forbidden(
                f"the key {self._caller.name!r} may have {most} stores; drop one, use an existing store, or raise "
                "--max-stores-per-key"
            )

    @override
    def acquire_open(self, name: str, *, replica: ReplicaReadPermission | None = None) -> OpenStore:
        return self._note_read(self._visible(name).acquire_open(name, replica=self._copies or replica))

    @override
    def release(self, store: OpenStore) -> None:
        self._stores.release(store)

    @override
    def release_or_discard(self, store: OpenStore) -> bool:
        return self._stores.release_or_discard(store)

    @override
    def drop(self, name: str) -> None:
        self._visible(name).drop(name)

    @override
    def move(self, name: str, node: str) -> StoreMoveAnswer:
        return self._visible(name).move(name, node)

    @override
    def drain(self, *, undo: bool) -> DrainAnswer:
        self._caller.require_every_store("draining a node")
        return self._stores.drain(undo=undo)

    @override
    def repair(self, name: str) -> StoreLogRepairAnswer:
        return self._visible(name).repair(name)

    @override
    def staging(self, name: str) -> Path:
        return self._visible(name).staging(name)

    @override
    def adopt(self, name: str, folder: Path) -> None:
        stores = self._visible(name)
        self._check_quota(name)
        try:
            stores.adopt(name, folder)
        except Conflict:
            self._hide_twin(name)
            raise

    @override
    def peek_open(self, name: str) -> AbstractContextManager[OpenStore | None]:
        return self._visible(name).peek_open(name)

    @override
    def reserve_if_closed(self, name: str) -> AbstractContextManager[bool]:
        return self._visible(name).reserve_if_closed(name)

    @override
    def find_closed(self, name: str) -> ClosedStoreIndexEntry | None:
        return self._visible(name).find_closed(name)

    @override
    def require(self, name: str) -> None:
        self._visible(name).require(name)

    @override
    def require_files(self, name: str) -> StoreLayout:
        return self._visible(name).require_files(name)

    @override
    def layout(self, name: str) -> StoreLayout:
        return self._visible(name).layout(name)

    @override
    def names(self) -> list[str]:
        return [name for name in self._stores.names() if self._caller.can_access(name)]

    @override
    def local_store_names(self) -> list[str]:
        return [name for name in self._stores.local_store_names() if self._caller.can_access(name)]

    @override
    def open_stores(self) -> Mapping[str, OpenStore]:
        return {name: store for name, store in self._stores.open_stores().items() if self._caller.can_access(name)}

    def _check(self, name: str) -> None:
        check_store_name(name)
        self._caller.require_store(name)

    def _visible(self, name: str) -> StoreRegistry:
        """Return the underlying stores if the caller may access this one. Raises NotFound otherwise."""
        self._check(name)
        return self._stores

    def _note_read(self, store: OpenStore) -> OpenStore:
        if self._copies is not None:
            self._copies.record_read(store)
        return store

    def _hide_twin(self, name: str) -> None:
        """Raise Conflict without a reason if a hidden store's name differs only in case."""
        if not self.placement.exists(name) and any(
            other.lower() == name.lower() and not self._caller.can_access(other) for other in self._stores.names()
        ):
            raise Conflict(f"the store name {name!r} is not available; choose another name") from None


class CallerScopedInboundLinks(InboundLinkLookup):
    """Inbound cross-store links, limited to those from stores that a caller ``sees``."""

    def __init__(self, links: InboundLinkLookup, sees: Callable[[str], bool]) -> None:
        self._links = links
        self._sees = sees

    @override
    def to(self, store: str, targets: Collection[str]) -> list[tuple[str, CrossStoreLinkRow]]:
        return [each for each in self._links.to(store, targets) if self._sees(each[0])]

    @override
    def counts(self, store: str, *, may_open: bool = True) -> list[tuple[str, int]]:
        return [each for each in self._links.counts(store, may_open=may_open) if self._sees(each[0])]

    @override
    def position(self, stores: Collection[str]) -> dict[str, int]:
        return self._links.position(stores)


class CallerScopedChangeFeeds(ChangeFeedLookup):
    """Change feeds of the stores that a caller ``sees``; ``check`` raises NotFound for other stores."""

    def __init__(self, feeds: ChangeFeedLookup, check: Callable[[str], None], sees: Callable[[str], bool]) -> None:
        self._feeds = feeds
        self._check = check
        self._sees = sees

    @property
    @override
    def store_list_generation(self) -> int:
        return self._feeds.store_list_generation

    @override
    def of(self, store: str) -> ChangeFeed:
        self._check(store)
        return self._feeds.of(store)

    @override
    def serving_since(self, store: str) -> int | None:
        self._check(store)
        return self._feeds.serving_since(store)

    @override
    def listen(self, wake: WakeCallback) -> Callable[[], None]:
        return self._feeds.listen(wake)

    @override
    def next_number(self) -> int:
        return self._feeds.next_number()

    @override
    def drop_count(self, store: str) -> int:
        return self._feeds.drop_count(store)

    @override
    def known_latest(self, store: str) -> int | None:
        return self._feeds.known_latest(store)

    @override
    def listen_by_name(self, wake: NamedWakeCallback) -> Callable[[], None]:
        return self._feeds.listen_by_name(self._choosing(wake))

    @override
    def listen_to_commits(self, wake: NamedWakeCallback) -> Callable[[], None]:
        return self._feeds.listen_to_commits(self._choosing(wake))

    def _choosing(self, wake: NamedWakeCallback) -> NamedWakeCallback:
        def choose(store: str) -> None:
            if self._sees(store):
                wake(store)

        return choose
