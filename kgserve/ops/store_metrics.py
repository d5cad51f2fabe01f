"""How each open store stands, in numbers that cost next to nothing to look up."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from kgserve.access.caller import Caller
from kgserve.errors import KgserveError
from kgserve.metrics.exposition import Family, counter, gauge
from kgserve.metrics.observation import Labels
from kgserve.ops.graph import Graphs
from kgserve.store.store import Store
from kgserve.views.follower import View
from kgserve.views.history import Historian
from kgserve.views.indexer import Indexer

_MICROSECONDS = 1e6


class Standing(NamedTuple):
    """An open store with its views: by name how many commits each is behind, what is pending, and which have failed.

    ``engine`` are the bytes of its engine's file and log, None while the file is just being replaced.
    """

    store: Store
    lags: Mapping[str, int]
    pending: Mapping[str, int]
    failing: Mapping[str, bool]
    engine: tuple[int, int] | None


def standings(graphs: Graphs, caller: Caller) -> list[Standing]:
    """The open stores that a caller sees, by name."""
    opened = sorted(graphs.pool.open_stores().items())
    return [standing_of(store, graphs.indexer, graphs.historian) for name, store in opened if caller.sees(name)]


def standing_of(store: Store, indexer: Indexer | None, historian: Historian | None) -> Standing:
    """How the views of a store are; those that are turned off, or just closing, are left out."""
    views = list(_views(store, indexer, historian))
    last = store.state.sequence
    return Standing(
        store,
        {name: max(last - max(reached, 0), 0) for name, reached, _ in views},
        {name: max(getattr(view, "pending", 0), 0) for name, _, view in views},
        {name: view.error is not None for name, _, view in views},
        _engine_bytes(store),
    )


def most_behind(found: Standing) -> int | None:
    """The commits by which the last of a store's views is behind; None without views."""
    return max(found.lags.values(), default=None)


def _engine_bytes(store: Store) -> tuple[int, int] | None:
    with contextlib.suppress(OSError):
        return store.engine.bytes()
    return None


def _views(store: Store, indexer: Indexer | None, historian: Historian | None) -> Iterator[tuple[str, int, View]]:
    """Each view by name, with the commit that it has seen."""
    with contextlib.suppress(KgserveError):
        if indexer is not None:
            indexes = indexer.of(store)
            for follower in (indexes.keyword, indexes.vector):
                yield follower.name, follower.reached, follower
            for past in (indexes.past_keyword, indexes.past_vector):
                if past.is_wanted:
                    yield past.name.replace(" ", "-"), past.sequence, past
    with contextlib.suppress(KgserveError):
        if historian is not None:
            history = historian.of(store)
            yield history.name, history.reached, history


class _Number(NamedTuple):
    name: str
    help: str
    of: Callable[[Standing], float | None]


_GAUGES = (
    _Number("nodes", "Nodes", lambda each: each.store.state.nodes),
    _Number("edges", "Edges", lambda each: each.store.state.edges),
    _Number("sequence", "Number of the last commit", lambda each: each.store.state.sequence),
    _Number("queued_writes", "Writes that wait", lambda each: each.store.queued),
    _Number("journal_bytes", "Size of the journal", lambda each: each.store.journal.bytes),
    _Number("engine_bytes", "Size of the engine's file", lambda each: each.engine and each.engine[0]),
    _Number("engine_log_bytes", "Size of the engine's log", lambda each: each.engine and each.engine[1]),
    _Number(
        "engine_processes", "1 while an engine's process has the store open", lambda each: each.store.engine.is_open
    ),
    _Number("engine_process_bytes", "Memory of that process", lambda each: each.store.engine.resident),
    _Number("waiting_statements", "Statements that wait for the engine", lambda each: each.store.engine.waiting),
    _Number("pending_entities", "Entities that indexes are taking in", lambda each: sum(each.pending.values())),
    _Number(
        "last_check_timestamp_seconds",
        "When engine and journal were last compared",
        lambda each: each.store.last_check.time / _MICROSECONDS if each.store.last_check else None,
    ),
    _Number(
        "last_check_ok",
        "1 when they agreed",
        lambda each: float(each.store.last_check.ok) if each.store.last_check else None,
    ),
)
_COUNTERS = (
    _Number("writes", "Writes carried out since the store was opened", lambda each: each.store.count.writes),
    _Number("commits", "Commits since the store was opened", lambda each: each.store.count.commits),
    _Number("commit_failures", "Groups of writes that failed", lambda each: each.store.count.failures),
    _Number("commit_seconds", "Time of its commits", lambda each: each.store.count.seconds),
    _Number("engine_rebuilds", "Engine files built anew from the journal", lambda each: each.store.engine.rebuilds),
    _Number("engine_starts", "Engines' processes begun", lambda each: each.store.engine.begun),
    _Number("engine_losses", "Engines' processes that ended or hung", lambda each: each.store.engine.losses),
    _Number("compactions", "Compactions", lambda each: each.store.compactor.done),
)


def of_stores(found: list[Standing]) -> Iterator[Family]:
    """The numbers of each store, under the label ``store``."""
    for number in _GAUGES:
        yield gauge(f"kgserve_store_{number.name}", number.help, ("store",), _values(number, found))
    for number in _COUNTERS:
        yield counter(f"kgserve_store_{number.name}", number.help, ("store",), _values(number, found))
    lags = {(each.store.name, view): float(lag) for each in found for view, lag in each.lags.items()}
    yield gauge("kgserve_store_view_lag_commits", "Commits that a view has not seen yet", ("store", "view"), lags)
    failing = {(each.store.name, view): float(bad) for each in found for view, bad in each.failing.items()}
    yield gauge("kgserve_store_view_failing", "1 while a view's last step has failed", ("store", "view"), failing)


def _values(number: _Number, found: list[Standing]) -> dict[Labels, float]:
    return {(each.store.name,): value for each in found if (value := number.of(each)) is not None}
