"""Changes of a statement as an overlay over a graph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from typing import Any
from uuid import uuid4

import msgspec
from typing_extensions import override

from kgserve.cypher.interpreter.graph_view_interface import (
    GENERATED_ID_PREFIX,
    NO_LABEL,
    RelationshipDifference,
    RelationshipKey,
    StatementGraphView,
    StatementNodeDifference,
    WritableGraphView,
)
from kgserve.cypher.interpreter.marker_labels import is_marker_label
from kgserve.cypher.interpreter.property_values import (
    check_property_value,
    get_label_from_type_property,
    resolve_new_node_label,
)
from kgserve.cypher.interpreter.temporary_property_indexes import TemporaryPropertyIndexes
from kgserve.cypher.interpreter.value_comparison import describe_value, value_equivalence_key
from kgserve.errors import InvalidInput
from kgserve.platform.json_values import is_same_json_value

_ATTRIBUTES_COLUMN = "attributes"
_TYPE_COLUMN = "relation_type"


class GraphChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Changes that a statement makes to a graph, as differences to the graph before it."""

    created_nodes: list[StatementNodeDifference]
    updated_nodes: list[StatementNodeDifference]
    deleted_nodes: list[StatementNodeDifference]
    created_relationships: list[RelationshipDifference]
    updated_relationships: list[RelationshipDifference]
    deleted_relationships: list[RelationshipDifference]

    @property
    def is_empty(self) -> bool:
        """True if nothing changed."""
        return not any(getattr(self, name) for name in self.__struct_fields__)


class GraphUpdateCounts(msgspec.Struct):
    """Numbers of the graph updates of a statement by type, as drivers report them."""

    nodes_created: int = 0
    nodes_deleted: int = 0
    relationships_created: int = 0
    relationships_deleted: int = 0
    properties_set: int = 0
    labels_added: int = 0
    labels_removed: int = 0


class EditedNode(msgspec.Struct):
    """Node that was created or changed; ``properties`` lack its id and label."""

    label: str
    properties: dict[str, Any]


class GraphChangeOverlay(WritableGraphView):
    """Overlay of changes over a graph that does not change itself.

    A deleted node or relationship has no properties any more, but its columns can
    still be shown: those of an empty one.
    """

    def __init__(self, base: StatementGraphView) -> None:
        self.base = base
        self.version = 0
        self.counts = GraphUpdateCounts()
        self._base_indexes = TemporaryPropertyIndexes(base)
        self._nodes: dict[str, EditedNode] = {}
        self._created: set[str] = set()
        self._deleted: dict[str, None] = {}
        self._deleted_by_statement: dict[str, None] = {}
        self._replaced: set[str] = set()
        self._edited_by_label: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._edited_by_value: defaultdict[tuple[str, Hashable], dict[str, None]] = defaultdict(dict)
        self._edit_order: list[str] = []
        self._defaults: dict[str, tuple[defaultdict[Hashable, dict[str, None]], int]] = {}
        self._relationships: dict[RelationshipKey, dict[str, Any]] = {}
        self._removed: set[RelationshipKey] = set()
        self._outgoing: defaultdict[str, dict[RelationshipKey, None]] = defaultdict(dict)
        self._incoming: defaultdict[str, dict[RelationshipKey, None]] = defaultdict(dict)

    # Nodes

    @override
    def node_ids(self) -> Iterator[str]:
        for node_id in self.base.node_ids():
            if node_id not in self._deleted and node_id not in self._replaced:
                yield node_id
        yield from [node_id for node_id in self._nodes if node_id in self._created]

    @override
    def node_ids_by_label(self, label: str) -> Iterator[str]:
        edited, deleted = self._nodes, self._deleted
        for node_id in self.base.node_ids_by_label(label):
            if node_id not in edited and node_id not in deleted:
                yield node_id
        yield from list(self._edited_by_label.get(label, ()))

    @override
    def node_ids_by_property(self, label: str | None, name: str, value: Any) -> Iterable[str] | None:
        if name == "id":
            return (value,) if isinstance(value, str) and self.has_node(value) else ()
        if name == "type":
            return list(self.node_ids_by_label(value)) if isinstance(value, str) and value != NO_LABEL else ()
        found = self.base.node_ids_by_property(label, name, value)
        if found is None:
            found = self._base_indexes.find(label, name, value)
        if found is None:
            return None
        key = _lookup_key(value)
        edited = {**self._edited_by_value.get((name, key), {}), **self._find_defaults(name, key)}
        own = [node_id for node_id in edited if node_id in self._nodes and label in {None, self._nodes[node_id].label}]
        return [*(node_id for node_id in found if node_id not in self._nodes and node_id not in self._deleted), *own]

    def _find_defaults(self, name: str, key: Hashable) -> dict[str, None]:
        """Return the changed nodes that may have a value for a property without being given one."""
        if name == _ATTRIBUTES_COLUMN:
            return dict.fromkeys(self._edit_order)
        found, count = self._defaults.get(name, (defaultdict[Hashable, dict[str, None]](dict), 0))
        for node_id in self._edit_order[count:]:
            default = self.base.unset_node_property(node_id, name, is_new=node_id in self._created)
            if default is not None:
                found[_lookup_key(default)][node_id] = None
        self._defaults[name] = (found, len(self._edit_order))
        return found.get(key, {})

    @override
    def has_node(self, node_id: str) -> bool:
        return node_id in self._nodes or (node_id not in self._deleted and self.base.has_node(node_id))

    @override
    def node_label(self, node_id: str) -> str | None:
        node = self._nodes.get(node_id)
        if node is not None:
            return node.label
        return None if node_id in self._deleted else self.base.node_label(node_id)

    @override
    def node_property(self, node_id: str, name: str) -> Any:
        node = self._nodes.get(node_id)
        if node is None:
            self._refuse_deleted(node_id)
            return self.base.node_property(node_id, name)
        if name == "id":
            return node_id
        if name == "type":
            return None if node.label == NO_LABEL else node.label
        value = node.properties.get(name)
        if value is None and name == node.label and is_marker_label(name):
            value = True
        elif name == _ATTRIBUTES_COLUMN:
            value = self.node_columns(node_id)[name]
        elif value is None:
            value = self.base.unset_node_property(node_id, name, is_new=node_id in self._created)
        return value

    @override
    def node_properties(self, node_id: str) -> dict[str, Any]:
        node = self._nodes.get(node_id)
        if node is None:
            self._refuse_deleted(node_id)
            return self.base.node_properties(node_id)
        if node_id.startswith(GENERATED_ID_PREFIX):
            return {**node.properties}
        return {"id": node_id, **node.properties}

    @override
    def unset_node_property(self, node_id: str, name: str, *, is_new: bool) -> Any:
        return self.base.unset_node_property(node_id, name, is_new=is_new)

    @override
    def convert_node_property(self, node_id: str, name: str, value: Any, *, is_new: bool) -> Any:
        return self.base.convert_node_property(node_id, name, value, is_new=is_new)

    @override
    def node_columns(self, node_id: str) -> dict[str, Any]:
        node = self._nodes.get(node_id)
        if node is not None:
            return self.base.changed_node_columns(self._describe_node(node_id, node))
        if node_id in self._deleted:
            return super().changed_node_columns(StatementNodeDifference(id=node_id, label=NO_LABEL))
        return self.base.node_columns(node_id)

    @override
    def changed_node_columns(self, change: StatementNodeDifference) -> dict[str, Any]:
        return self.base.changed_node_columns(change)

    @override
    def create_node(self, label: str, properties: dict[str, Any]) -> str:
        node_id = properties.get("id")
        if node_id is None:
            node_id = GENERATED_ID_PREFIX + uuid4().hex
        else:
            self._check_new_id(node_id)
        label = resolve_new_node_label(label, properties.get("type"))
        given = {name: value for name, value in properties.items() if value is not None and name not in {"id", "type"}}
        kept: dict[str, Any] = {}
        for name, value in given.items():
            check_property_value(name, value)
            kept[name] = self.base.convert_node_property(node_id, name, value, is_new=True)
        kept = {name: value for name, value in kept.items() if value is not None}
        if node_id in self._deleted:
            del self._deleted[node_id]
            if self.base.has_node(node_id):
                self._replaced.add(node_id)
        self._created.add(node_id)
        self._put_node(node_id, EditedNode(label, kept))
        self.counts.nodes_created += 1
        self.counts.properties_set += len(given)
        self.counts.labels_added += label != NO_LABEL
        return node_id

    @override
    def set_node_property(self, node_id: str, name: str, value: Any) -> None:
        if name == "id":
            if value != node_id:
                raise InvalidInput(f"node {node_id!r}: an id cannot change; create another node with the new id")
            return
        if name == "type":
            self.set_node_label(node_id, NO_LABEL if value is None else get_label_from_type_property(value))
            return
        node = self._edit_node(node_id)
        check_property_value(name, value)
        stored = self.base.convert_node_property(node_id, name, value, is_new=node_id in self._created)
        self._count_assignment(node.properties, name, value, stored)
        if stored is not None:
            self._edited_by_value[name, _lookup_key(stored)][node_id] = None

    def _count_assignment(self, properties: dict[str, Any], name: str, value: Any, stored: Any) -> None:
        """Set a property to its stored value, or remove it, and count this if it does anything."""
        had_value = properties.pop(name, None) is not None
        if stored is not None:
            properties[name] = stored
        if had_value or value is not None:
            self.counts.properties_set += 1
        self.version += 1

    @override
    def set_node_label(self, node_id: str, label: str) -> None:
        node = self._edit_node(node_id)
        if node.label == label:
            return
        self.counts.labels_removed += node.label != NO_LABEL
        self.counts.labels_added += label != NO_LABEL
        self._edited_by_label[node.label].pop(node_id, None)
        self._edited_by_label[label][node_id] = None
        node.label = label
        self.version += 1

    @override
    def delete_node(self, node_id: str) -> None:
        if not self.has_node(node_id):
            return
        node = self._nodes.pop(node_id, None)
        if node is not None:
            self._edited_by_label[node.label].pop(node_id, None)
        self._deleted[node_id] = None
        self._deleted_by_statement[node_id] = None
        self.version += 1
        self.counts.nodes_deleted += 1

    @override
    def detach_node(self, node_id: str) -> None:
        for is_outgoing in (True, False):
            for key in list(self._iterate_relationships(node_id, is_outgoing=is_outgoing)):
                self.delete_relationship(key)

    # Relationships

    @override
    def relationships(
        self, node_id: str, *, is_outgoing: bool, types: tuple[str, ...] = ()
    ) -> Iterable[RelationshipKey]:
        if not self.version and node_id not in self._created:
            return self.base.relationships(node_id, is_outgoing=is_outgoing, types=types)
        keys = self._iterate_relationships(node_id, is_outgoing=is_outgoing, types=types)
        if not self._deleted:
            return keys
        other = 1 if is_outgoing else 0
        return [key for key in keys if key[other] not in self._deleted]

    @override
    def count_relationships(self, node_id: str, *, is_outgoing: bool, types: tuple[str, ...] = ()) -> int:
        if not self.version:
            return self.base.count_relationships(node_id, is_outgoing=is_outgoing, types=types)
        return super().count_relationships(node_id, is_outgoing=is_outgoing, types=types)

    def _iterate_relationships(
        self, node_id: str, *, is_outgoing: bool, types: tuple[str, ...] = ()
    ) -> list[RelationshipKey]:
        """Return the relationships of a node, also those whose other node was deleted."""
        keys: list[RelationshipKey] = []
        if node_id not in self._created:
            found = self.base.relationships(node_id, is_outgoing=is_outgoing, types=types)
            keys = [key for key in found if key not in self._removed] if self._removed else list(found)
        own = (self._outgoing if is_outgoing else self._incoming).get(node_id)
        if own:
            keys += [key for key in own if key[2] in types] if types else own
        return keys

    @override
    def has_relationship(self, key: RelationshipKey) -> bool:
        if key in self._relationships:
            return True
        if key in self._removed or key[0] in self._created or key[1] in self._created:
            return False
        return self.base.has_relationship(key)

    @override
    def relationship_property(self, key: RelationshipKey, name: str) -> Any:
        own = self._relationships.get(key)
        if own is not None:
            value = self.relationship_columns(key)[name] if name == _ATTRIBUTES_COLUMN else own.get(name)
            if value is not None:
                return value
            return self.base.unset_relationship_property(key, name, is_new=self._is_new_relationship(key))
        self._refuse_removed(key)
        return self.base.relationship_property(key, name)

    @override
    def relationship_properties(self, key: RelationshipKey) -> dict[str, Any]:
        own = self._relationships.get(key)
        if own is not None:
            return {**own}
        self._refuse_removed(key)
        return self.base.relationship_properties(key)

    @override
    def unset_relationship_property(self, key: RelationshipKey, name: str, *, is_new: bool) -> Any:
        return self.base.unset_relationship_property(key, name, is_new=is_new)

    @override
    def convert_relationship_property(self, key: RelationshipKey, name: str, value: Any, *, is_new: bool) -> Any:
        return self.base.convert_relationship_property(key, name, value, is_new=is_new)

    @override
    def relationship_columns(self, key: RelationshipKey) -> dict[str, Any]:
        if key in self._relationships:
            return self.base.changed_relationship_columns(self._describe_relationship(key))
        if not self.has_relationship(key):
            return super().changed_relationship_columns(RelationshipDifference(key=key))
        return self.base.relationship_columns(key)

    @override
    def changed_relationship_columns(self, change: RelationshipDifference) -> dict[str, Any]:
        return self.base.changed_relationship_columns(change)

    @override
    def create_relationship(self, source: str, target: str, type_: str, properties: dict[str, Any]) -> RelationshipKey:
        for node_id in (source, target):
            if not self.has_node(node_id):
                raise InvalidInput(f"node {node_id!r} was deleted; no relationship can be created at it")
        key = (source, target, type_)
        if self.has_relationship(key):
            raise InvalidInput(
                f"a relationship {type_} from {source!r} to {target!r} exists already, and there can be only one; "
                "use MERGE, or match it and SET its properties"
            )
        kept: dict[str, Any] = {}
        for name, value in properties.items():
            if value is not None and not self._is_type_of_relationship(key, name, value):
                check_property_value(name, value)
                kept[name] = self.base.convert_relationship_property(key, name, value, is_new=True)
        self._relationships[key] = {name: value for name, value in kept.items() if value is not None}
        self._outgoing[source][key] = None
        self._incoming[target][key] = None
        self.version += 1
        self.counts.relationships_created += 1
        self.counts.properties_set += len(kept)
        return key

    @override
    def set_relationship_property(self, key: RelationshipKey, name: str, value: Any) -> None:
        if self._is_type_of_relationship(key, name, value):
            return
        own = self._relationships.get(key)
        if own is None:
            self._refuse_removed(key)
            own = self._relationships[key] = {**self.base.relationship_properties(key)}
        check_property_value(name, value)
        stored = self.base.convert_relationship_property(key, name, value, is_new=self._is_new_relationship(key))
        self._count_assignment(own, name, value, stored)

    def _is_type_of_relationship(self, key: RelationshipKey, name: str, value: Any) -> bool:
        """Return whether a property is the relationship's type, unchanged. Raises InvalidInput for another type."""
        if name == _TYPE_COLUMN and value != key[2]:
            raise InvalidInput(
                f"the relationship {key[2]} from {key[0]!r} to {key[1]!r}: its type cannot change; "
                "delete it and create another one"
            )
        return name == _TYPE_COLUMN

    def _is_new_relationship(self, key: RelationshipKey) -> bool:
        """Return whether a changed relationship is not, or no longer, the one of the base."""
        return key in self._removed or not {*key[:2]}.isdisjoint(self._created) or not self.base.has_relationship(key)

    @override
    def delete_relationship(self, key: RelationshipKey) -> None:
        if not self.has_relationship(key):
            return
        self._relationships.pop(key, None)
        if key in self._outgoing.get(key[0], ()):
            del self._outgoing[key[0]][key]
            del self._incoming[key[1]][key]
        else:
            self._removed.add(key)
        self.version += 1
        self.counts.relationships_deleted += 1

    @override
    def check_deletions(self) -> None:
        for node_id in self._deleted_by_statement:
            for is_outgoing in (True, False):
                for source, target, type_ in self._iterate_relationships(node_id, is_outgoing=is_outgoing):
                    raise InvalidInput(
                        f"node {node_id!r} cannot be deleted: it still has the relationship {type_} from {source!r} "
                        f"to {target!r}; delete its relationships too, or use DETACH DELETE"
                    )
        self._deleted_by_statement.clear()

    # Statistics

    @override
    def node_count(self, label: str | None = None) -> int:
        if label is None:
            return self.base.node_count() + len(self._created) - len(self._deleted) - len(self._replaced)
        return self.base.node_count(label) + len(self._edited_by_label.get(label, ()))

    @override
    def labels(self) -> list[str]:
        names = {*self.base.labels(), *(node.label for node in self._nodes.values())} - {NO_LABEL}
        if self.version:
            names = {name for name in names if next(self.node_ids_by_label(name), None) is not None}
        return sorted(names)

    @override
    def relationship_types(self) -> list[str]:
        names = {*self.base.relationship_types(), *(key[2] for key in self._relationships)}
        if not self._removed:
            return sorted(names)
        removed = {key[2] for key in self._removed}
        nodes = list(self.node_ids())
        return sorted(
            name
            for name in names
            if name not in removed
            or any(True for each in nodes for _ in self.relationships(each, is_outgoing=True, types=(name,)))
        )

    @override
    def property_keys(self) -> list[str]:
        names = set(self.base.property_keys())
        for node_id, node in self._nodes.items():
            names.update(node.properties)
            if not node_id.startswith(GENERATED_ID_PREFIX):
                names.add("id")
        for properties in self._relationships.values():
            names.update(properties)
        return sorted(names)

    # Result

    def changes(self) -> GraphChanges:
        """Return the differences to the base; what a statement created and deleted again is not among them.

        A node that one statement deleted and a later one created is both deleted and created.
        """
        nodes = [self._describe_node(node_id, node) for node_id, node in self._nodes.items()]
        deleted = [
            self._describe_base_node(node_id)
            for node_id in {**self._deleted, **dict.fromkeys(self._replaced)}
            if node_id not in self._created or node_id in self._replaced
        ]
        relationships = [
            self._describe_relationship(key) for key in {**self._relationships, **dict.fromkeys(self._removed)}
        ]
        return GraphChanges(
            created_nodes=[each for each in nodes if each.label_before is None],
            updated_nodes=[
                each
                for each in nodes
                if each.label_before is not None
                and not (
                    each.label == each.label_before and is_same_json_value(each.properties, each.properties_before)
                )
            ],
            deleted_nodes=deleted,
            created_relationships=[each for each in relationships if each.properties_before is None],
            updated_relationships=[
                each
                for each in relationships
                if each.properties is not None
                and each.properties_before is not None
                and (each.is_replaced or not is_same_json_value(each.properties, each.properties_before))
            ],
            deleted_relationships=[each for each in relationships if each.properties is None],
        )

    def _describe_node(self, node_id: str, node: EditedNode) -> StatementNodeDifference:
        """Return the difference of a new or changed node to the base."""
        if node_id in self._created:
            return StatementNodeDifference(id=node_id, label=node.label, properties={**node.properties})
        before = self._describe_base_node(node_id)
        return msgspec.structs.replace(before, label=node.label, properties={**node.properties})

    def _describe_base_node(self, node_id: str) -> StatementNodeDifference:
        before = self.base.node_properties(node_id)
        return StatementNodeDifference(
            id=node_id,
            label_before=self.base.node_label(node_id),
            properties_before={name: value for name, value in before.items() if name not in {"id", "type"}},
        )

    def _describe_relationship(self, key: RelationshipKey) -> RelationshipDifference:
        own = self._relationships.get(key)
        is_new = key not in self._removed and self._is_new_relationship(key)
        return RelationshipDifference(
            key=key,
            properties_before=None if is_new else self.base.relationship_properties(key),
            properties=None if own is None else {**own},
            is_replaced=key in self._removed and own is not None,
        )

    # Parts

    def _edit_node(self, node_id: str) -> EditedNode:
        node = self._nodes.get(node_id)
        if node is not None:
            return node
        self._refuse_deleted(node_id)
        properties = self.base.node_properties(node_id)
        kept = {name: value for name, value in properties.items() if name not in {"id", "type"}}
        node = EditedNode(self.base.node_label(node_id) or NO_LABEL, kept)
        self._put_node(node_id, node)
        return node

    def _put_node(self, node_id: str, node: EditedNode) -> None:
        self._nodes[node_id] = node
        self._edit_order.append(node_id)
        self._edited_by_label[node.label][node_id] = None
        for name, value in node.properties.items():
            self._edited_by_value[name, _lookup_key(value)][node_id] = None
        if is_marker_label(node.label):
            is_set = True
            self._edited_by_value[node.label, _lookup_key(is_set)][node_id] = None
        self.version += 1

    def _check_new_id(self, node_id: Any) -> None:
        if not isinstance(node_id, str) or not node_id:
            raise InvalidInput(
                f"the property id of a node must be a string that is not empty, not {describe_value(node_id)}; "
                "give the number another name, or write toString(…)"
            )
        if node_id in self._deleted_by_statement:
            raise InvalidInput(f"node {node_id!r} was deleted by the same statement; create it in another one")
        if self.has_node(node_id):
            label = self.node_label(node_id)
            raise InvalidInput(
                f"a node with the id {node_id!r} exists already, "
                f"{'without a label' if label == NO_LABEL else f'with the label {label!r}'}; "
                "MERGE it by label and id alone, and SET its other properties"
            )

    def _refuse_deleted(self, node_id: str) -> None:
        if node_id in self._deleted:
            raise InvalidInput(
                f"node {node_id!r} was deleted by this statement; it has no properties or labels any more"
            )

    def _refuse_removed(self, key: RelationshipKey) -> None:
        if not self.has_relationship(key):
            source, target, type_ = key
            raise InvalidInput(
                f"the relationship {type_} from {source!r} to {target!r} was deleted by this statement; "
                "it has no properties any more"
            )


def _lookup_key(value: Any) -> Hashable:
    """Return a key that equal values share; all lists and all maps share one."""
    return type(value) if isinstance(value, list | dict) else value_equivalence_key(value)
