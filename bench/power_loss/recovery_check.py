"""Opening of a folder after a power loss, and comparison with the acknowledged writes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

import kgserve
from bench.ledger import ABSENT, Ledger, WriteUnit
from bench.power_loss.recording import DROPPED, SETTINGS, STORE, Timeline
from kgserve.admin.doctor import StoreRepairOptions, repair_and_check_stores
from kgserve.client.embedded import Library, Store
from kgserve.errors import KgserveError, NotFound, Unavailable
from kgserve.platform.settings import Settings
from kgserve.stores.pool import StorePool

PATIENCE = 30.0
UNITS = 12

Found = TypeVar("Found")


def examine(data: Path, timeline: Timeline, position: int, choice: random.Random) -> tuple[list[str], float]:
    """Return the violations in a data folder after a power loss at a record length, and the seconds to an export."""
    seconds = 0.0
    try:
        with kgserve.open(data, embedding_provider="hashing") as library:
            stores = {store.name for store in library.stores().stores}
            wrong = list(_check_dropped_stores(library, stores, timeline.marked(DROPPED, position)))
            ledger = timeline.at(position)
            if STORE in stores:
                seconds, more = _compare_store(library.store(STORE), ledger, choice)
                wrong += [*more, *_check_settings(library.store(STORE), timeline.marked("settings", position))]
            elif ledger.acknowledged:
                wrong.append(f"{STORE} is missing after {ledger.acknowledged} acknowledged writes")
        return [*wrong, *_doctor_findings(data)], seconds
    except (KgserveError, OSError) as error:
        return [f"{type(error).__name__}: {error}"], seconds


def _check_dropped_stores(library: Library, stores: set[str], last: int) -> Iterator[str]:
    """Check that dropped stores stay deleted, and that a store being dropped exists completely or not at all."""
    for number in range(last + 1):
        if f"{DROPPED}-{number}" in stores:
            yield f"{DROPPED}-{number} exists again"
    for name in stores - {STORE}:
        ledger, unit = Ledger(name), WriteUnit("dropped", 500, None)
        unit.allowed = [ABSENT, *unit.allowed]
        rows = {**unit.rows(ABSENT)}
        lines = _lines(library.store(name))
        whole = len(unit.batch(1)["nodes"]) + len(unit.batch(1)["edges"])
        if len(lines) not in (len(rows), whole):
            yield f"{ledger.store}: {len(lines)} lines, not {whole}"


def _compare_store(store: Store, ledger: Ledger, choice: random.Random) -> tuple[float, list[str]]:
    started = time.monotonic()
    lines = _retry(lambda: _lines(store))
    seconds = time.monotonic() - started
    wrong = ledger.verify(lines)
    nodes = {line["id"] for line in lines if line["kind"] == "node"}
    sequence = store.stats().sequence
    counted = _retry(lambda: store.cypher("MATCH (n:Entity) RETURN count(n)").rows[0][0])
    related = _retry(lambda: store.cypher("MATCH (:Entity)-[r]->(:Entity) RETURN count(r)").rows[0][0])
    if (counted, related) != (len(nodes), len(lines) - len(nodes)):
        wrong.append(f"the engine counts {counted} nodes and {related} edges, not {len(nodes)} of {len(lines)} rows")
    if (listed := {node.id for node in store.nodes()}) != nodes:
        wrong.append(f"the list has {len(listed)} nodes, not {len(nodes)}")
    settled = ledger.settled_units()
    for unit in choice.sample(settled, min(UNITS, len(settled))):
        wrong += [*_check_search(store, unit, sequence), *_check_history(store, unit, sequence)]
    return seconds, wrong


def _check_search(store: Store, unit: WriteUnit, sequence: int) -> Iterator[str]:
    """Check that search finds the nodes of a unit with their current content."""
    text = f"generation {unit.allowed[0].generation}"
    hits = _retry(
        lambda: (
            store.search(
                f'"{text}"', mode="keyword", syntax=True, id_prefix=f"{unit.name}/", limit=100, at_least=sequence
            ).hits
        )
    )
    wanted = {key[0] for key in unit.rows(unit.allowed[0]) if len(key) == 1}
    if (found := {hit.node.id for hit in hits}) != wanted:
        yield f"search for {text!r} finds {len(found)} nodes of {unit.name}, not {len(wanted)}"


def _check_history(store: Store, unit: WriteUnit, sequence: int) -> Iterator[str]:
    """Check that the history contains each generation of a unit."""
    _retry(lambda: store.node(unit.id(1), as_of=sequence))
    found = [state.node.version for state in _retry(lambda: store.history(unit.id(1), limit=200).states)]
    if found != list(range(unit.allowed[0].generation, 0, -1)):
        yield f"the history of {unit.id(1)} has versions {found[:5]}, not {unit.allowed[0].generation} of them"


def _check_settings(store: Store, last: int) -> Iterator[str]:
    number = store.settings().metadata.get("number", -1)
    if not isinstance(number, int) or number < last:
        yield f"the settings are number {number}, but {last} was acknowledged"


def _doctor_findings(data: Path) -> Iterator[str]:
    settings = Settings(data_dir=data, buffer_pool_mb=int(str(SETTINGS["buffer_pool_mb"])), check_interval=0)
    with StorePool(settings) as pool:
        names = pool.names()
    for name in names:
        for report in repair_and_check_stores(settings, name, StoreRepairOptions()):
            yield from (f"doctor: {each.part}: {each.detail}" for each in report.findings if not each.ok)


def _lines(store: Store) -> list[dict[str, Any]]:
    # the store's settings are a separate line
    return [line for line in map(_line, store.export()) if line["kind"] in {"node", "edge"}]


def _line(each: Any) -> dict[str, Any]:
    found: dict[str, Any] = each if isinstance(each, dict) else msgspec.to_builtins(each)
    return found


def _retry(ask: Callable[[], Found]) -> Found:
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return ask()
        except (Unavailable, NotFound) as error:
            if time.monotonic() > end or isinstance(error, NotFound):
                raise
            time.sleep(0.05)
