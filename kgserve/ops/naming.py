"""One entity or one relation at a time, as `kgserve.ops.named` makes several."""

from __future__ import annotations

from concurrent.futures import Future

import msgspec

from kgserve.model.merging import MergeAnswer, MergeNode
from kgserve.model.named import (
    CreatedEntity,
    CreatedRelation,
    CreateEntitiesRequest,
    CreateRelationsRequest,
    EntityInput,
    RelationInput,
)
from kgserve.ops import merging, named
from kgserve.ops.graph import Graph, made_of
from kgserve.ops.named import found_entity


def create_entity(graph: Graph, request: EntityInput) -> Future[CreatedEntity]:
    """Makes an entity, or meets the one of that name and type; makes the store if it does not exist.

    Names are the same whatever their case, blanks and forms of letters. One whose type nobody had said gets the type.
    Raises InvalidInput, TooLarge, StorageFull and Unavailable.
    """
    made = named.create_entities(graph, CreateEntitiesRequest(entities=[request]))
    return made_of(made, lambda answer: answer.entities[0])


def relate(graph: Graph, request: RelationInput) -> Future[CreatedRelation]:
    """Relates two entities by their names; ends that are not there are made, as `unknown`.

    Stating a relation again updates it. Raises InvalidInput, Conflict for a name that several entities have, TooLarge,
    StorageFull and Unavailable.
    """
    made = named.create_relations(graph, CreateRelationsRequest(relations=[request]))
    return made_of(made, lambda answer: answer.relations[0])


def merge_entities(graph: Graph, request: MergeNode) -> Future[MergeAnswer]:
    """Merges an entity into another one that is the same, each by its id or its name: what is about either is about it.

    Both names mean the one that stays. Undone as the merge of any two nodes. Raises what a merge does, and Conflict for
    a name that several entities have.
    """
    with graph.lease() as store:
        absorbed, into = (found_entity(store, each, graph.name) for each in (request.node_id, request.into))
    return merging.merge(graph, msgspec.structs.replace(request, node_id=absorbed, into=into))
