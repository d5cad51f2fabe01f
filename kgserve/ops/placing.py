"""What memories are to stand below, decided in the writer's turn: one parent at most, no circles, layers in order."""

from __future__ import annotations

from kgserve.errors import Conflict, NotFound
from kgserve.model.batch import EdgePut
from kgserve.model.fields import NO_EXTRAS, EdgeExtrasPut
from kgserve.model.hierarchy import CHILD_OF, MAX_DEPTH, check_layers, newest
from kgserve.model.rows import NodeRow
from kgserve.model.withdrawing import edge_brought_back, stands
from kgserve.ops.drafting import Draft


class Places:
    """Where the memories of a draft are to stand. For the writing thread."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._placed: dict[str, str] = {}

    def parent(self, memory: str) -> NodeRow | None:
        """What a memory will stand below."""
        if (placed := self._placed.get(memory)) is not None:
            return self._draft.node(placed) if placed else None
        edges = self._draft.ahead.upward(memory)
        there = {parent: row for parent in edges if stands(row := self._draft.node(parent))}
        edge = newest(edge for parent, edge in edges.items() if parent in there)
        self._placed[memory] = "" if edge is None else edge.target
        return None if edge is None else there[edge.target]

    def find(self, parent_id: str) -> NodeRow:
        """A memory that others may stand below, or the one that has taken it in. Raises NotFound and Conflict."""
        row = self._draft.node(self._draft.ahead.survivor(parent_id))
        if row is None:
            raise NotFound(f"parent_id: there is no memory {parent_id!r}")
        if not row.is_memory:
            raise Conflict(f"parent_id: node {parent_id!r} is no memory")
        if not stands(row):
            extras = row.extras or NO_EXTRAS
            why = f"is a former version of {extras.belongs_to!r}" if extras.belongs_to else f"was {extras.ended}"
            raise Conflict(f"parent_id: memory {parent_id!r} {why}; nothing can stand below it")
        return row

    def put(self, child: NodeRow, parent: NodeRow | None) -> None:
        """Have a memory stand below another one and no other, or below none. Raises Conflict."""
        if parent is not None:
            self._check(child, parent)
        there = self._draft.ahead.upward(child.id)
        for target in there:
            row = self._draft.node(target)
            if (parent is None or target != parent.id) and row is not None and row.is_memory:
                self._draft.drop_edge((child.id, target, CHILD_OF))
        for target in self._withdrawn(child.id):
            if parent is None or target != parent.id:
                self._draft.drop_edge((child.id, target, CHILD_OF))
        if (own := self._placed.get(child.id)) and (parent is None or own != parent.id):
            self._draft.drop_edge((child.id, own, CHILD_OF))
        if parent is not None and parent.id not in there:
            self._draft.put_edge(
                EdgePut(0, (child.id, parent.id, CHILD_OF), extras=_for_good(self._draft, child, parent))
            )
        self._placed[child.id] = "" if parent is None else parent.id

    def _withdrawn(self, child: str) -> list[str]:
        """Forgotten memories that it stood below: it is not to be below them again when they come back."""
        edges = (edge for edge in self._draft.ahead.edges_from(child) if edge.relation_type == CHILD_OF)
        return [edge.target for edge in edges if edge_brought_back(edge) is not None]

    def add(self, child: NodeRow, parent: NodeRow) -> None:
        """The same for a memory that stands below none yet, if it can stand there."""
        if self.parent(child.id) is None:
            try:
                self.put(child, parent)
            except Conflict:
                return

    def keep_order(self, row: NodeRow) -> None:
        """Raise Conflict where a memory, with its layer, is above its parent or below its children."""
        layer, parent = (row.extras or NO_EXTRAS).layer, self.parent(row.id)
        if parent is not None:
            check_layers(row, parent)
        if layer is not None:
            for child_id in dict.fromkeys(self._draft.ahead.more_general(row.id, layer)):
                child, above = self._draft.node(child_id), self.parent(child_id)
                if stands(child) and above is not None and above.id == row.id:
                    check_layers(child, row)

    def _check(self, child: NodeRow, parent: NodeRow) -> None:
        """Raise Conflict for a place that is below the memory itself, too deep, or of a more specific layer."""
        if parent.id == child.id:
            raise Conflict(f"parent_id: memory {child.id!r} cannot stand below itself")
        seen = {parent.id}
        at: NodeRow | None = parent
        while (at := self.parent(at.id)) is not None and at.id not in seen:
            if at.id == child.id:
                raise Conflict(
                    f"parent_id: memory {parent.id!r} stands below {child.id!r} itself; that would be a circle"
                )
            seen.add(at.id)
            if len(seen) > MAX_DEPTH:
                raise Conflict(
                    f"parent_id: {MAX_DEPTH} levels are above memory {parent.id!r} already, and no more may be"
                )
        check_layers(child, parent)


def _for_good(draft: Draft, child: NodeRow, parent: NodeRow) -> EdgeExtrasPut | None:
    """What takes the end from a relation that was there and has ended."""
    there = draft.edge((child.id, parent.id, CHILD_OF))
    return None if there is None else EdgeExtrasPut(valid_from=None, valid_to=None)
