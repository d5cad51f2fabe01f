"""Interface between the interpreter and a graph, and the nodes, relationships and paths that statements return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeAlias, TypeVar

import msgspec
from typing_extensions import override

from kgserve.cypher.interpreter.marker_labels import find_marker_labels_in_attributes
from kgserve.cypher.interpreter.stored_temporal_values import encode_property_as_json
from kgserve.errors import TooLarge

_T = TypeVar("_T")

_encode = msgspec.json.Encoder(order="sorted").encode
RelationshipKey: TypeAlias = tuple[str, str, str]
"""Source id, target id and type: a store has at most one relationship of a type from one node to another."""

MATCH_COUNT = " matches"
"""Hidden variable of a row that stands for several equal ones: their number."""
NO_LABEL = "_"
"""Type of a node that was created without a label."""
GENERATED_ID_PREFIX = "_:"
"""Begins the ids of nodes that were created without one; such an id is no property of its node."""


class StatementNodeDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Difference of a node before and after a statement; a label is None where the node does not exist.

    ``properties`` lack null values, the label and the id.
    """

    id: str
    label_before: str | None = None
    label: str | None = None
    properties_before: dict[str, Any] = {}
    properties: dict[str, Any] = {}


class RelationshipDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Difference that a statement makes to a relationship: properties before and after, None where it is missing.

    One that was deleted and created again ``is_replaced``.
    """

    key: RelationshipKey
    properties_before: dict[str, Any] | None = None
    properties: dict[str, Any] | None = None
    is_replaced: bool = False


class StatementGraphView(ABC):
    """Graph as a statement sees it: the rows of one commit, and the statement's own changes.

    ``version`` grows with every change.
    """

    version = 0

    @abstractmethod
    def node_ids(self) -> Iterator[str]:
        """Yield the ids of all nodes."""

    @abstractmethod
    def node_ids_by_label(self, label: str) -> Iterator[str]:
        """Yield the ids of the nodes with a label."""

    @abstractmethod
    def node_ids_by_property(self, label: str | None, name: str, value: Any) -> Iterable[str] | None:
        """Return ids of nodes among which are all with a label and an equal property; None if no index has them."""

    def sample_nodes(self, label: str, count: int) -> list[str]:
        """Return ids of at most ``count`` nodes with a label."""
        return [*islice(self.node_ids_by_label(label), count)]

    @abstractmethod
    def has_node(self, node_id: str) -> bool:
        """Return whether a node exists."""

    @abstractmethod
    def node_label(self, node_id: str) -> str | None:
        """Return the label of a node, `NO_LABEL` if it has none; None if the node does not exist."""

    def node_markers(self, node_id: str) -> list[str]:
        """Return the marker labels of a node. Raises InvalidInput if the node was deleted."""
        return find_marker_labels_in_attributes(self.node_properties(node_id))

    @abstractmethod
    def node_property(self, node_id: str, name: str) -> Any:
        """Return a property of a node, null if it has none. Raises InvalidInput if the node was deleted."""

    @abstractmethod
    def node_properties(self, node_id: str) -> dict[str, Any]:
        """Return the properties of a node that are not null. Raises InvalidInput if the node was deleted."""

    def unset_node_property(self, node_id: str, name: str, *, is_new: bool) -> Any:  # noqa: ARG002
        """Return the value of a property that a new or changed node was not given; null without defaults."""
        return None

    def convert_node_property(self, node_id: str, name: str, value: Any, *, is_new: bool) -> Any:  # noqa: ARG002
        """Return a value as the property of a new or changed node shows it once it is stored, null for none.

        Raises InvalidInput for a value that the property cannot have.
        """
        return value

    @abstractmethod
    def node_columns(self, node_id: str) -> dict[str, Any]:
        """Return a node as JSON answers show it: all columns by name."""

    def changed_node_columns(self, change: StatementNodeDifference) -> dict[str, Any]:
        """Return a new or changed node as JSON answers show it; a node without label before is new."""
        return {"_label": "Entity", "id": change.id, "type": change.label} | _format_attributes(change.properties)

    @abstractmethod
    def relationships(
        self, node_id: str, *, is_outgoing: bool, types: tuple[str, ...] = ()
    ) -> Iterable[RelationshipKey]:
        """Return the relationships that start or end at a node, of any type if ``types`` is empty."""

    def count_relationships(self, node_id: str, *, is_outgoing: bool, types: tuple[str, ...] = ()) -> int:
        """Return the number of relationships that start or end at a node."""
        return sum(1 for _ in self.relationships(node_id, is_outgoing=is_outgoing, types=types))

    @abstractmethod
    def has_relationship(self, key: RelationshipKey) -> bool:
        """Return whether a relationship exists."""

    @abstractmethod
    def relationship_property(self, key: RelationshipKey, name: str) -> Any:
        """Return a property of a relationship. Raises InvalidInput if the relationship was deleted."""

    @abstractmethod
    def relationship_properties(self, key: RelationshipKey) -> dict[str, Any]:
        """Return the properties of a relationship that are not null. Raises InvalidInput if it was deleted."""

    def unset_relationship_property(self, key: RelationshipKey, name: str, *, is_new: bool) -> Any:  # noqa: ARG002
        """Return the value of a property that a new or changed relationship was not given; null without defaults."""
        return None

    def convert_relationship_property(
        self,
        key: RelationshipKey,  # noqa: ARG002
        name: str,  # noqa: ARG002
        value: Any,
        *,
        is_new: bool,  # noqa: ARG002
    ) -> Any:
        """Return a value as the property of a relationship shows it once it is stored. Raises InvalidInput."""
        return value

    @abstractmethod
    def relationship_columns(self, key: RelationshipKey) -> dict[str, Any]:
        """Return a relationship as JSON answers show it: all columns by name."""

    def changed_relationship_columns(self, change: RelationshipDifference) -> dict[str, Any]:
        """Return a new, replaced or changed relationship as JSON answers show it."""
        source, target, type_ = change.key
        shown = {"_label": "RELATES_TO", "_from": source, "_to": target, "relation_type": type_}
        return shown | _format_attributes(change.properties or {})

    @abstractmethod
    def node_count(self, label: str | None = None) -> int:
        """Return the approximate number of nodes, of a label or all."""

    @abstractmethod
    def labels(self) -> list[str]:
        """Return the labels of all nodes, sorted."""

    @abstractmethod
    def relationship_types(self) -> list[str]:
        """Return the types of all relationships, sorted."""

    @abstractmethod
    def property_keys(self) -> list[str]:
        """Return the names of properties in use, sorted."""


def _format_attributes(properties: dict[str, Any]) -> dict[str, Any]:
    return {"attributes": _encode(encode_property_as_json(properties)).decode()}


class WritableGraphView(StatementGraphView):
    """Graph view that collects the changes of a statement."""

    @abstractmethod
    def create_node(self, label: str, properties: dict[str, Any]) -> str:
        """Create a node and return its id: the property ``id``, or a generated one. Raises InvalidInput."""

    @abstractmethod
    def create_relationship(self, source: str, target: str, type_: str, properties: dict[str, Any]) -> RelationshipKey:
        """Create a relationship. Raises InvalidInput if one of this type exists already."""

    @abstractmethod
    def set_node_property(self, node_id: str, name: str, value: Any) -> None:
        """Set a property of a node; null removes it. Raises InvalidInput for a value that no property may have."""

    @abstractmethod
    def set_node_label(self, node_id: str, label: str) -> None:
        """Give a node a label; `NO_LABEL` removes it."""

    @abstractmethod
    def set_relationship_property(self, key: RelationshipKey, name: str, value: Any) -> None:
        """Set a property of a relationship; null removes it. Raises InvalidInput."""

    @abstractmethod
    def delete_node(self, node_id: str) -> None:
        """Delete a node. Its relationships stay until `check_deletions`."""

    @abstractmethod
    def detach_node(self, node_id: str) -> None:
        """Delete all relationships of a node, those with deleted nodes included."""

    @abstractmethod
    def delete_relationship(self, key: RelationshipKey) -> None:
        """Delete a relationship."""

    @abstractmethod
    def check_deletions(self) -> None:
        """End a statement. Raises InvalidInput if a relationship of a deleted node still exists."""


class NodeReference:
    """Node of a graph view as a value; equal to every reference to the same id."""

    __slots__ = ("graph", "id")

    def __init__(self, graph: StatementGraphView, node_id: str) -> None:
        self.graph = graph
        self.id = node_id

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, NodeReference) and other.id == self.id

    @override
    def __hash__(self) -> int:
        return hash(self.id)

    @override
    def __repr__(self) -> str:
        return f"({self.id})"


class RelationshipReference:
    """Relationship of a graph view as a value; equal to every reference to the same key."""

    __slots__ = ("graph", "key")

    def __init__(self, graph: StatementGraphView, key: RelationshipKey) -> None:
        self.graph = graph
        self.key = key

    @property
    def type(self) -> str:
        """Type of the relationship."""
        return self.key[2]

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, RelationshipReference) and other.key == self.key

    @override
    def __hash__(self) -> int:
        return hash(self.key)

    @override
    def __repr__(self) -> str:
        return f"[{self.key[0]}-{self.key[2]}->{self.key[1]}]"


class PathValue(msgspec.Struct, frozen=True):
    """Path in a graph as a value: one more node than relationships, which may be traversed in reverse."""

    nodes: tuple[NodeReference, ...]
    relationships: tuple[RelationshipReference, ...]


Row: TypeAlias = dict[str, Any]
"""Values of variables by name. Stages never change a row that they received."""

CompiledExpression: TypeAlias = Callable[[Row], Any]


class ExecutionLimits:
    """Limits of time and memory of one execution."""

    def __init__(self, check: Callable[[], None], max_values: int = 5_000_000) -> None:
        """Call ``check`` regularly, which raises TimedOut; hold at most ``max_values`` values."""
        self._check = check
        self._steps = 0
        self._held = 0
        self._max_values = max_values

    def step(self, count: int = 1) -> None:
        """Count work. Raises TimedOut."""
        self._steps += count
        if self._steps >= 1_000:  # noqa: PLR2004
            self._steps = 0
            self._check()

    def hold(self, count: int) -> None:
        """Count values that stay in memory. Raises TooLarge."""
        self._held += count
        if self._held > self._max_values:
            raise TooLarge(f"the statement holds more than {self._max_values} values in memory; filter earlier")

    def hold_all(self, values: Iterable[_T], already: int = 0) -> list[_T]:
        """List values that stay in memory in place of ``already`` held ones. Raises TooLarge once they are too many."""
        held: list[_T] = []
        for each in values:
            held.append(each)
            if len(held) > already:
                self.hold(1)
        self.hold(min(len(held) - already, 0))
        return held
