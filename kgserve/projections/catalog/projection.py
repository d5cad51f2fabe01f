"""Catalog of a store as a projection, brought up to date when it is read."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from typing_extensions import override

from kgserve.errors import Unavailable
from kgserve.projections.base import ProjectionEraseRequest
from kgserve.projections.catalog.attribute_index import EndedNodeState, LastIndexedEndedState
from kgserve.projections.catalog.node_catalog import NodeCatalog
from kgserve.projections.history.reader import EndedStateReadPosition, read_ended_node_states
from kgserve.projections.history.row_state_history import RowStateInterval
from kgserve.projections.on_demand_projection import OnDemandProjection
from kgserve.storage.journal.journal import Journal
from kgserve.storage.model.attribute_filters import AttributeCondition
from kgserve.storage.model.change_set import ChangeSet, NetChange
from kgserve.storage.model.node_edge_rows import NodeRow
from kgserve.storage.rows.current_rows import CurrentRowsProjection
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.storage.store_folder_layout import StoreLayout

_Found = TypeVar("_Found")

PAST_ATTRIBUTES_BATCH_STATES = 2_000
MAX_PENDING_ROWS = 5_000
"""Rows of commits not yet applied above which the catalog catches up without being read."""


class CatalogDamaged(sqlite3.DatabaseError):
    """Raised when the node catalog is damaged: it returned a row that must not exist."""


class NodeCatalogProjection(OnDemandProjection[NodeCatalog]):
    """Catalog of a store's nodes, with counts of types, tags and relation types."""

    name = "catalog"
    damage_event = "catalog_damaged"
    rebuilding_message = "the list of nodes is being rebuilt"

    def __init__(self, layout: StoreLayout, journal: Journal, rows: CurrentRowsProjection) -> None:
        super().__init__(layout.catalog, layout, journal, rows)
        self._rows_behind = 0

    def ask_by_attributes(self, question: Callable[[NodeCatalog, RowsSnapshot], _Found]) -> _Found:
        """Like `ask`, for queries by attributes; builds the attribute index on first use."""

        def ask(catalog: NodeCatalog, rows: RowsSnapshot) -> _Found:
            if not catalog.has_attributes:
                catalog.index_attributes(rows.all_nodes())
            return question(catalog, rows)

        return self.ask(ask)

    def find_ended_nodes_with(self, wanted: Sequence[AttributeCondition], at: int) -> list[str]:
        """Return the nodes whose state as of commit ``at`` has ended and had all the given attributes.

        Raises Unavailable while the history cannot be read.
        """
        try:
            while self._read_history():
                pass
            return self.ask(lambda catalog, _: catalog.find_ended_nodes_with(wanted, at))
        except sqlite3.Error as error:
            raise Unavailable("the history cannot be read now", retry_after=2) from error

    def note_committed(self, rows: int) -> None:
        """Count rows of new commits. Called by the writing thread."""
        self._rows_behind += rows

    def tend(self) -> None:
        """Catch up if many rows are pending. Raises Unavailable."""
        if self.sequence >= 0 and self._rows_behind > MAX_PENDING_ROWS:
            self.ask(lambda _catalog, _rows: None)

    @override
    def _open(self) -> int:
        self._file = NodeCatalog(self._path)
        return self._file.sequence

    @override
    def _apply(self, changes: Iterable[ChangeSet], sequence: int) -> None:
        self._rows_behind = 0
        self._opened.apply(NetChange(changes), sequence)

    @override
    def _apply_all(self, rows: RowsSnapshot) -> int:
        self._opened.rebuild(rows.all_nodes(), rows.relation_counts().items(), rows.at)
        return rows.at

    @override
    def _erase(self, erasure: ProjectionEraseRequest) -> None:
        self._opened.rewrite_without_deleted_rows()

    def _read_history(self) -> bool:
        """Index a batch of ended states from the history; return whether more are left."""
        with self._lock:
            place = self.ask(lambda catalog, _: catalog.read_ended_position())
            # Outside `ask`, because damage to the history file is not damage to the catalog.
            found = read_ended_node_states(
                self._layout.history, EndedStateReadPosition(place.last, place.id), PAST_ATTRIBUTES_BATCH_STATES
            )
            if found is None:
                return False
            reached = LastIndexedEndedState(found.place.last, found.place.id, found.oldest)
            if reached != place:
                self.ask(lambda catalog, _: catalog.index_ended_states(map(_ended, found.states), reached))
            return found.more


def _ended(state: RowStateInterval[NodeRow]) -> EndedNodeState:
    return EndedNodeState(state.row.id, state.first, state.last or 0, state.row.attributes)
