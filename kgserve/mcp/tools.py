"""The tools: of each its name, what is said of it, what it takes and answers, and how it runs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec

from kgserve.access.caller import Role
from kgserve.errors import FieldError, InvalidInput
from kgserve.mcp import present, schemas
from kgserve.mcp.schemas import Description, Example, TypeDescription, as_request, with_more
from kgserve.model import answers, queries, requests, versioned
from kgserve.model import stores as store_answers
from kgserve.ops import cypher, history, reading, search, stores, versions, writing
from kgserve.ops.graph import Graph, as_struct

G = TypeVar("G", bound=msgspec.Struct)

_TYPES_WITH_EXAMPLES = 20
_EXAMPLES = 3
_TEASER = 60


class Tool(NamedTuple, Generic[G]):
    """A tool; ``run`` gets the store and the checked arguments, and may block.

    ``doing`` is what progress reports say while it runs.
    ``administers``: it needs the role of an administrator, whatever its effect. ``runs_statement``: a statement
    of the caller's, which may take long.
    """

    name: str
    title: str
    description: str
    arguments: type[G]
    answer: type[msgspec.Struct]
    doing: str
    run: Callable[[Graph, G], msgspec.Struct | Future[Any]]
    effect: Literal["reads", "writes", "deletes"] = "reads"
    administers: bool = False
    runs_statement: bool = False

    @property
    def role(self) -> Role:
        """What a key needs for it."""
        if self.administers:
            return "admin"
        return "read" if self.effect == "reads" else "write"


def _get_entity(graph: Graph, given: schemas.GetEntity) -> answers.NodeAnswer:
    if given.version and (given.as_of or given.valid_at):
        raise InvalidInput("version: goes with neither as_of nor valid_at; leave them out")
    return as_struct(reading.get_node(graph, as_request(queries.NodeRequest, given)), answers.NodeAnswer)


def _list_entities(graph: Graph, given: schemas.ListEntities) -> answers.ListedPage:
    found = _page(graph, given, given.limit)
    # A page that is too large is asked for again as a shorter one, whose cursor goes on where it ends.
    while (fitting := present.fitting(found.nodes)) < len(found.nodes):
        found = _page(graph, given, fitting)
    return found


def _page(graph: Graph, given: schemas.ListEntities, limit: int) -> answers.ListedPage:
    wanted = as_request(queries.NodesQuery, given)
    wanted.type, wanted.tag, wanted.limit = given.types or [], given.tags or [], limit
    page = reading.list_nodes(graph, wanted)
    if isinstance(page, answers.ListedPage):
        return page
    listed = [answers.ListedNode(**msgspec.structs.asdict(node)) for node in page.nodes]
    return answers.ListedPage(nodes=listed, next_cursor=page.next_cursor)


def _list_relations(graph: Graph, given: schemas.ListRelations) -> versioned.EdgeList:
    wanted = as_request(queries.EdgesRequest, given)
    wanted.kinds = given.relation_types or []
    found = reading.outgoing(graph, wanted) if given.direction == "outgoing" else reading.incoming(graph, wanted)
    return as_struct(found, versioned.EdgeList)


def _list_stores(graph: Graph, given: schemas.ListStores) -> store_answers.StoreList:
    listed = stores.list_stores(graph.graphs)
    page = listed.stores[given.offset : given.offset + given.limit]
    return store_answers.StoreList(stores=page, count=listed.count)


def describe(graph: Graph) -> Description:
    """What a store holds, from counts that are kept and pages of the catalog. Raises NotFound."""
    held = stores.stats(graph)
    types = [
        TypeDescription(
            type=type_,
            count=count,
            examples=_examples(graph, type_) if place < _TYPES_WITH_EXAMPLES else [],
        )
        for place, (type_, count) in enumerate(held.types.items())
    ]
    return Description(
        name=held.name,
        nodes=held.nodes,
        edges=held.edges,
        sequence=held.sequence,
        types=types,
        relation_types=held.relation_types,
        indexes_behind=max((index.lag for index in held.indexes if index.name in ("keyword", "vector")), default=0),
    )


def _examples(graph: Graph, type_: str) -> list[Example]:
    page = reading.list_nodes(graph, queries.NodesQuery(type=[type_], limit=_EXAMPLES))
    return [Example(id=node.id, content=present.shortened(node.content or "", _TEASER)) for node in page.nodes]


def _drop_store(graph: Graph, given: schemas.DropStore) -> store_answers.DropAnswer:
    if given.confirm != given.index:
        message = "must repeat the name of the store; nothing was dropped"
        raise InvalidInput(f"confirm: {message}", (FieldError("confirm", message),))
    return stores.drop_store(graph.graphs.graph(given.index), as_request(queries.DropQuery, given))


_ALL: tuple[Tool[Any], ...] = (
    Tool(
        "inject_knowledge_graph",
        "Record nodes and edges",
        "Create or update entities and the relations between them, all or nothing. Sending the same again changes "
        "nothing; a field that is left out keeps its value, and former values stay in entity_history. The store is "
        "made when it does not exist. Edges whose ends exist neither in the store nor in `nodes` are skipped and "
        "listed.",
        schemas.Inject,
        answers.InjectAnswer,
        "writing the batch",
        lambda graph, given: writing.inject(graph, as_request(requests.InjectRequest, given)),
        "writes",
    ),
    Tool(
        "delete_graph_entity",
        "Delete an entity",
        "Remove one entity and all its relations. One that does not exist is fine. For what was true and is no longer "
        "there is retire_entity.",
        schemas.DeleteEntity,
        answers.DeleteNodeAnswer,
        "deleting the entity",
        lambda graph, given: writing.delete_node(graph, as_request(queries.NodeId, given)),
        "deletes",
    ),
    Tool(
        "delete_graph_relation",
        "Delete a relation",
        "Remove one relation, named by both ends and its type; others between the same entities stay. For what was "
        "true and is no longer there is retire_relation.",
        schemas.DeleteRelation,
        answers.DeleteEdgeAnswer,
        "deleting the relation",
        lambda graph, given: writing.delete_edge(graph, as_request(requests.EdgeKeyRequest, given)),
        "deletes",
    ),
    Tool(
        "traverse_knowledge_graph",
        "Walk the graph from an entity",
        "Follow relations from one entity up to `depth` hops, outgoing ones unless `direction` says otherwise. Answers "
        "with the entities reached, nearest first, and the relations between them, as of any moment.",
        schemas.Traverse,
        with_more(answers.TraverseAnswer, "Walked", "The nodes reached, nearest first, and the edges between them."),
        "walking the graph",
        lambda graph, given: as_struct(
            reading.traverse(graph, as_request(requests.TraverseRequest, given)), answers.TraverseAnswer
        ),
    ),
    Tool(
        "get_entity",
        "Read one entity",
        "One entity with its whole content, its attributes and its relations in both directions: as it is, as of a "
        "moment, or in one of its versions, which comes without relations.",
        schemas.GetEntity,
        schemas.Entity,
        "reading the entity",
        _get_entity,
    ),
    Tool(
        "list_entities",
        "List entities",
        "Entities in the order of their ids, of any of `types` and with all of `tags`, page by page. To find by words "
        "or meaning use search_knowledge.",
        schemas.ListEntities,
        with_more(
            answers.ListedPage,
            "Entities",
            "A page of entities in the order of their ids; ``next_cursor`` is null on the last one.",
        ),
        "listing entities",
        _list_entities,
    ),
    Tool(
        "list_relations",
        "List the relations of an entity",
        "Relations that start or end at one entity, page by page: by ordinal, those without one last, then by age.",
        schemas.ListRelations,
        with_more(
            versioned.EdgeList,
            "Relations",
            "A page of relations by ordinal, those without one last, then by age; ``next_offset`` is null on the last "
            "one.",
        ),
        "listing relations",
        _list_relations,
    ),
    Tool(
        "put_node",
        "Write a version of an entity",
        "Write one entity whole, as its next version: what is left out becomes empty (inject_knowledge_graph keeps "
        "it). With based_on_version, the version that you read, nobody's later change is overwritten unseen in a "
        "store whose conflict policy is manual: both versions are then kept, and the error says how to settle it.",
        schemas.PutNode,
        schemas.Put,
        "writing the entity",
        lambda graph, given: versions.put_node(graph, as_request(versioned.PutNodeRequest, given)),
        "writes",
    ),
    Tool(
        "put_subgraph",
        "Write entities and relations, each by itself",
        "Write versions of up to 50 entities, then up to 100 relations, which may name new entities by `ref`. Best "
        "effort: one result for each, in order, and what is wrong with one is said of that one. All or nothing is "
        "inject_knowledge_graph.",
        schemas.PutSubgraph,
        with_more(
            versioned.PutSubgraphAnswer, "SubgraphPut", "One result for each node and each edge, in the order sent."
        ),
        "writing the subgraph",
        lambda graph, given: versions.put_subgraph(graph, as_request(versioned.PutSubgraphRequest, given)),
        "writes",
    ),
    Tool(
        "retire_entity",
        "Say until when an entity was true",
        "For what was true and is no longer: sets valid_to instead of deleting. It stays, and so do its relations; "
        "reads with valid_at go by it.",
        schemas.RetireEntity,
        versioned.RetireAnswer,
        "retiring the entity",
        lambda graph, given: writing.retire_node(graph, as_request(queries.RetireNode, given)),
        "writes",
    ),
    Tool(
        "retire_relation",
        "Say until when a relation was true",
        "For what was true and is no longer: sets valid_to instead of deleting. Reads with valid_at go by it.",
        schemas.RetireRelation,
        versioned.RetireAnswer,
        "retiring the relation",
        lambda graph, given: writing.retire_edge(graph, as_request(versioned.RetireEdgeRequest, given)),
        "writes",
    ),
    Tool(
        "entity_history",
        "Read the history of an entity",
        "The states of one entity, newest first, deleted or not: when each was recorded, by whom, and what it changed. "
        "get_entity with `version` gives one whole.",
        schemas.EntityHistory,
        with_more(
            answers.NodeHistory,
            "History",
            "States, newest first, each with what it changed; ``next_before`` is null on the last page.",
        ),
        "reading the history",
        lambda graph, given: history.node_history(graph, as_request(queries.HistoryRequest, given)),
    ),
    Tool(
        "revert_entity",
        "Go back to a version of an entity",
        "Write an entity as it was in a former version, as a new version; one that was deleted comes back. Relations "
        "stay as they are.",
        schemas.RevertEntity,
        answers.InjectAnswer,
        "going back to a version",
        lambda graph, given: history.revert(graph, as_request(queries.RevertNode, given)),
        "writes",
    ),
    Tool(
        "search_knowledge",
        "Search",
        "Find entities by words, by meaning, and by what they are related to. Best first, with scores.",
        schemas.Search,
        with_more(answers.SearchAnswer, "Found", "Hits, best first."),
        "searching",
        lambda graph, given: search.search(graph, as_request(requests.SearchRequest, given)),
    ),
    Tool(
        "search_batch",
        "Search in several ways at once",
        "Ask the same in up to eight ways; the answers are joined into one ranking. Better than one search when it is "
        "not known how things were worded.",
        schemas.SearchBatch,
        with_more(answers.BatchSearchAnswer, "BatchFound", "The hits of all variants, joined, best first."),
        "searching",
        lambda graph, given: search.search_batch(graph, as_request(requests.BatchSearchRequest, given)),
    ),
    Tool(
        "get_context",
        "Get text about a question",
        "The entities that fit a question best and the relations between them, as text of at most `budget` tokens, "
        "with ids to cite. What to call first when something may be known already.",
        schemas.Context,
        answers.ContextAnswer,
        "gathering context",
        lambda graph, given: search.context(graph, as_request(requests.ContextRequest, given)),
    ),
    Tool(
        "list_stores",
        "List the stores",
        "All stores with their counts.",
        schemas.ListStores,
        with_more(store_answers.StoreList, "Stores", "A page of the stores by name; ``count`` is that of all."),
        "listing the stores",
        _list_stores,
    ),
    Tool(
        "describe_store",
        "Describe a store",
        "What a store holds: types of entities with counts and examples, and relation types with counts. Read it "
        "before you write, so that the same things keep getting the same types and relation types.",
        schemas.DescribeStore,
        Description,
        "describing the store",
        lambda graph, _: describe(graph),
    ),
    Tool(
        "drop_store",
        "Drop a store",
        "Remove a store with everything in it, for good. `confirm` must repeat its name. Only when the user has asked "
        "for just this.",
        schemas.DropStore,
        store_answers.DropAnswer,
        "dropping the store",
        _drop_store,
        "deletes",
        administers=True,
    ),
    Tool(
        "describe_schema",
        "Describe the types and tags of a store",
        "Which types and tags a store uses, with counts and examples: the 100 most frequent of each, and tags of the "
        "form prefix:value by prefix. Read it before you write, so that you use the words that are there.",
        schemas.DescribeSchema,
        with_more(answers.SchemaDescription, "Schema", "The types and tags in use, the most frequent first."),
        "describing the schema",
        lambda graph, _: reading.describe_schema(graph),
    ),
    Tool(
        "list_tags",
        "List tags",
        "The tags that start with `prefix`, or all, with the number of nodes that have each: the most frequent first.",
        schemas.ListTags,
        with_more(answers.TagList, "Tags", "Tags, the most frequent first."),
        "listing tags",
        lambda graph, given: reading.list_tags(graph, as_request(queries.TagsQuery, given)),
    ),
    Tool(
        "query_cypher",
        "Query with Cypher",
        "Run one Cypher statement that reads. Entities are (:Entity {id, type, content, attributes}), relations "
        "[:RELATES_TO {relation_type, weight, attributes}]; attributes are JSON text. Pass values as params.",
        schemas.QueryCypher,
        with_more(answers.CypherAnswer, "Rows", "The rows of a statement."),
        "running the query",
        lambda graph, given: cypher.run(graph, as_request(requests.CypherRequest, given)),
        runs_statement=True,
    ),
)

TOOLS: dict[str, Tool[Any]] = {tool.name: tool for tool in _ALL}
