"""Graph without nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typing_extensions import override

from kgserve.cypher.interpreter.graph_view_interface import RelationshipKey, StatementGraphView


class EmptyGraph(StatementGraphView):
    """Graph without nodes."""

    @override
    def node_ids(self) -> Iterator[str]:
        yield from ()

    @override
    def node_ids_by_label(self, label: str) -> Iterator[str]:
        yield from ()

    @override
    def node_ids_by_property(self, label: str | None, name: str, value: Any) -> tuple[str, ...]:
        return ()

    @override
    def has_node(self, node_id: str) -> bool:
        return False

    @override
    def node_label(self, node_id: str) -> str | None:
        return None

    @override
    def node_property(self, node_id: str, name: str) -> Any:
        return None

    @override
    def node_properties(self, node_id: str) -> dict[str, Any]:
        return {}

    @override
    def node_columns(self, node_id: str) -> dict[str, Any]:
        return {}

    @override
    def relationships(
        self, node_id: str, *, is_outgoing: bool, types: tuple[str, ...] = ()
    ) -> tuple[RelationshipKey, ...]:
        return ()

    @override
    def has_relationship(self, key: RelationshipKey) -> bool:
        return False

    @override
    def relationship_property(self, key: RelationshipKey, name: str) -> Any:
        return None

    @override
    def relationship_properties(self, key: RelationshipKey) -> dict[str, Any]:
        return {}

    @override
    def relationship_columns(self, key: RelationshipKey) -> dict[str, Any]:
        return {}

    @override
    def node_count(self, label: str | None = None) -> int:
        return 0

    @override
    def labels(self) -> list[str]:
        return []

    @override
    def relationship_types(self) -> list[str]:
        return []

    @override
    def property_keys(self) -> list[str]:
        return []
