"""Helpers that ship the stores of a data folder to a target, and follow it, within one process."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from kgserve.stores.pool import StorePool
from kgserve.stores.replication.follower import FollowerPlacement
from kgserve.stores.replication.journal_shipper import JournalShipper, ShipperOptions
from kgserve.stores.replication.leader_files import get_or_create_data_folder_identity
from kgserve.stores.replication.target_address import open_target_storage
from tests.stores.writing import settings


@contextmanager
def shipping(data: Path, target: str, *, take_over: bool = False, keep_hours: float = 1.0) -> Generator[JournalShipper]:
    """Yield a shipper that has claimed the target."""
    options = ShipperOptions(take_over=take_over, keep_hours=keep_hours)
    identity = get_or_create_data_folder_identity(data)
    with closing(JournalShipper(open_target_storage(target), data, identity, options)) as shipper:
        shipper.claim()
        yield shipper


def ship_all(shipper: JournalShipper) -> None:
    """Ship everything that is there, with new bases."""
    for _ in range(2):
        shipper.ship()
        shipper.wait_for_bases()
    shipper.ship()


@contextmanager
def following(data: Path, target: str) -> Generator[tuple[StorePool, FollowerPlacement]]:
    """Yield the pool of a follower that is as new as the target, and its placement. No thread follows."""
    with StorePool(settings(data), partial(FollowerPlacement, target=target)) as pool:
        placement = pool.placement
        assert isinstance(placement, FollowerPlacement)
        placement.attach(pool)
        placement.catch_up()
        yield pool, placement
