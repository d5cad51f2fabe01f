"""The tools: of each its name, what is said of it, what it takes, and how it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from kgserve.errors import InvalidInput
from kgserve.graph import answers, history, merge, mutations, queries, reading, requests, versions
from kgserve.graph.compat import versioned_api
from kgserve.graph.cypher import write_transaction
from kgserve.graph.handle import Graph, as_struct
from kgserve.graph.merge_api import MergeAnswer, MergeNode, UnmergeAnswer, UnmergeNode
from kgserve.graph.search import search
from kgserve.platform.access.authentication import Role
from kgserve.platform.codecs import convert
from kgserve.server.mcp import present, schemas
from kgserve.server.mcp.schemas import as_request

G = TypeVar("G", bound=msgspec.Struct)

_RELATIONS = 100
_OF_A_VARIANT = 20


class Tool(NamedTuple, Generic[G]):
    """A tool; ``run`` gets the store and the checked arguments, and may block.

    ``doing`` is what progress reports say while it runs.
    ``effect``: "writes" changes what is sent, "overwrites" empties what is not sent, too.
    ``administers``: it needs the role of an administrator, whatever its effect, but with the argument ``makes_with``;
    ``administers_with`` is the argument with which it does. ``runs_statement``: a statement
    of the caller's, which may take long. ``writes_with``: the argument with which a tool that reads writes.
    ``without_store``: it answers without one, too. ``nothing``: its values for a default store that is not there yet;
    None: that is an error; ``maker``: the tool that makes the store.
    """

    name: str
    title: str
    description: str
    arguments: type[G]
    doing: str
    run: Callable[[Graph, G], msgspec.Struct | Future[Any]]
    effect: Literal["reads", "writes", "overwrites", "deletes"] = "reads"
    administers: bool = False
    administers_with: str = ""
    makes_with: str = ""
    runs_statement: bool = False
    writes_with: str = ""
    without_store: bool = False
    nothing: Mapping[str, Any] | None = None
    maker: str = "inject_knowledge_graph"

    def role(self, arguments: Mapping[str, Any] | None) -> Role:
        """What a key needs for a call of it."""
        given = arguments or {}
        administers = self.administers and given.get(self.makes_with) is not True
        if administers or (self.administers_with and given.get(self.administers_with)):
            return "admin"
        return "read" if self.effect == "reads" and not self.writes(arguments) else "write"

    def writes(self, arguments: Mapping[str, Any] | None) -> bool:
        """Whether a call of it may change the store."""
        return self.effect != "reads" or bool(self.writes_with and (arguments or {}).get(self.writes_with))


def _get_entity(graph: Graph, given: schemas.GetEntity) -> answers.NodeAnswer:
    if given.version and (given.as_of or given.valid_at or given.follow_symlinks):
        raise InvalidInput("version: goes with none of as_of, valid_at and follow_symlinks; leave them out")
    found = as_struct(reading.get_node(graph, as_request(queries.NodeRequest, given)), answers.NodeAnswer)
    if given.direction != "both":
        [other] = {"outgoing", "incoming"} - {given.direction}
        found = replace(found, **{other: []})
    if not given.relations_offset or given.version:
        return found
    wanted = as_request(queries.IncomingRequest, given)
    wanted.offset, wanted.limit = given.relations_offset, _RELATIONS
    pages = {
        name: as_struct(reading.edges_of_node(graph, wanted, outgoing=name == "outgoing"), versioned_api.EdgeList)
        for name in ("outgoing", "incoming")
        if given.direction in (name, "both")
    }
    truncated = any(page.next_offset is not None for page in pages.values())
    edges = {name: page.edges for name, page in pages.items()}
    return replace(found, **edges, edges_truncated=truncated)


def _list_entities(
    graph: Graph, given: schemas.ListEntities
) -> answers.ListedPage | answers.NodesAnswer | answers.CountAnswer:
    if given.ids:
        return reading.get_nodes(graph, as_request(requests.NodesRequest, given))
    if given.count:
        if given.as_of:
            raise InvalidInput("count: goes without as_of; list the entities of then")
        return reading.count(graph, as_request(requests.CountRequest, given))
    found = _page(graph, given, given.limit)
    # A page that is too large is asked for again as a shorter one, whose cursor goes on where it ends.
    while (fitting := present.fitting(found.nodes, detail=given.detail)) < len(found.nodes):
        found = _page(graph, given, fitting)
    return found


def _page(graph: Graph, given: schemas.ListEntities, limit: int) -> answers.ListedPage:
    wanted = as_request(queries.NodesQuery, given)
    wanted.type, wanted.tag, wanted.limit = given.types or [], given.tags or [], limit
    wanted.attributes = msgspec.json.encode(given.attributes).decode() if given.attributes else None
    page = reading.list_nodes(graph, wanted)
    if isinstance(page, answers.ListedPage):
        return page
    listed = [answers.ListedNode(**msgspec.structs.asdict(node)) for node in page.nodes]
    return answers.ListedPage(nodes=listed, next_cursor=page.next_cursor)


def _list_relations(graph: Graph, given: schemas.ListRelations) -> versioned_api.EdgeList:
    wanted = as_request(queries.IncomingRequest, given)
    wanted.kinds = given.relation_types or []
    found = reading.edges_of_node(graph, wanted, outgoing=given.direction == "outgoing")
    return as_struct(found, versioned_api.EdgeList)


def _search(graph: Graph, given: schemas.Search) -> answers.SearchAnswer | answers.BatchSearchAnswer:
    if bool(given.query) == bool(given.queries):
        raise InvalidInput.at("query", "give what to look for as query, or several wordings of it as queries")
    if given.query:
        return search.search(graph, as_request(requests.SearchRequest, given))
    if given.mode == "graph":
        raise InvalidInput("mode: graph takes one query; give it as query")
    same = _variant(given)
    asked = as_request(requests.BatchSearchRequest, given)
    asked.queries = [convert({**same, "query": each}, requests.SearchVariant) for each in given.queries or ()]
    return search.search_batch(graph, asked)


def _variant(given: schemas.Search) -> dict[str, Any]:
    values = {name: getattr(given, name) for name in ("mode", "types", "tags", "attributes", "id_prefix", "fresh_only")}
    return {"limit": _OF_A_VARIANT} | {name: value for name, value in values.items() if value}


def _delete_entity(
    graph: Graph, given: schemas.DeleteNodeArguments
) -> Future[answers.DeleteNodeAnswer] | Future[answers.DeleteNodesAnswer]:
    filters = (given.ids, given.types, given.tags, given.attributes)
    if given.id and not any(filters) and not given.dry_run:
        return mutations.delete_node(graph, as_request(queries.NodeId, given))
    asked = as_request(requests.DeleteNodesRequest, given)
    if given.id:
        asked.ids = [given.id, *(given.ids or ())]
    return reading.delete_nodes(graph, asked)


def _merge(graph: Graph, given: schemas.MergeEntities) -> Future[MergeAnswer] | Future[UnmergeAnswer]:
    if given.undo:
        return merge.unmerge(graph, as_request(UnmergeNode, given))
    if not given.into:
        raise InvalidInput.at("into", "is required, unless undo is true: the id of the entity that stays")
    return merge.merge(graph, as_request(MergeNode, given))


def _retire(graph: Graph, given: schemas.Retire) -> Future[versioned_api.RetireAnswer]:
    named = schemas.end_of(given)
    if isinstance(named, schemas.RetireEntity):
        return mutations.retire_node(graph, as_request(queries.RetireNode, named))
    return mutations.retire_edge(graph, as_request(versioned_api.RetireEdgeRequest, named))


def _history(graph: Graph, given: schemas.EntityHistory) -> Any:
    if not given.revert_to:
        return history.node_history(graph, as_request(queries.HistoryRequest, given))
    return history.revert(graph, queries.RevertNode(node_id=given.id, version=given.revert_to))


_FOUND: dict[str, Any] = {"hits": []}
_LISTED: dict[str, Any] = {"nodes": []}
_WALKED: dict[str, Any] = {"nodes": [], "edges": [], "count": 0, "truncated": False}
_CONTEXT: dict[str, Any] = {"text": "", "tokens": 0, "ids": [], "truncated": False}
_ROWS: dict[str, Any] = {"columns": [], "rows": [], "row_count": 0, "truncated": False}

GRAPH_TOOLS: tuple[Tool[Any], ...] = (
    Tool(
        "get_context",
        "Get text about a question",
        "When a question is about what the graph holds: the entities that fit it best and their relations, as text of "
        "at most `budget` tokens with ids to cite.",
        schemas.ContextArguments,
        "gathering context",
        lambda graph, given: search.context(graph, as_request(requests.ContextRequest, given)),
        nothing=_CONTEXT,
    ),
    Tool(
        "search_knowledge",
        "Search",
        "When the id of an entity is not known: find entities by words, meaning and what they are related to, best "
        "first; `queries` asks in several wordings. It sees what you wrote before.",
        schemas.Search,
        "searching",
        _search,
        nothing=_FOUND,
    ),
    Tool(
        "get_entity",
        "Read one entity",
        "When an id is known: the entity whole, with attributes and relations, page by page by `relations_offset`; as "
        "it is, as of a moment, or in one of its versions.",
        schemas.GetEntity,
        "reading the entity",
        _get_entity,
        nothing={"node": None},
    ),
    Tool(
        "traverse_knowledge_graph",
        "Walk the graph from an entity",
        "When it matters what depends on an entity, or leads to it: the entities within `depth` hops, nearest first, "
        "and the relations between them.",
        schemas.Traverse,
        "walking the graph",
        lambda graph, given: as_struct(
            reading.traverse(graph, as_request(requests.TraverseRequest, given)), answers.TraverseAnswer
        ),
        nothing=_WALKED,
    ),
    Tool(
        "inject_knowledge_graph",
        "Record nodes and edges",
        "When things and how they are related are to be recorded: create or update entities and relations, all or "
        "nothing; makes the store if need be. What is left out keeps its value, and sending the same again changes "
        "nothing. Edges without both ends are skipped and listed. Single facts: retain.",
        schemas.Inject,
        "writing the batch",
        lambda graph, given: mutations.inject(graph, as_request(requests.InjectRequest, given)),
        "writes",
    ),
    Tool(
        "list_entities",
        "List entities",
        "When all of a kind are wanted: entities of any of `types`, with all of `tags` and `attributes`, by id, page "
        "by page; with `count` how many; or those of `ids`.",
        schemas.ListEntities,
        "listing entities",
        _list_entities,
        nothing=_LISTED,
    ),
    Tool(
        "query_cypher",
        "Query with Cypher",
        "When counts or patterns are asked for that nothing else tells: a statement that reads (:Entity {id, type, "
        "content, attributes}), [:RELATES_TO {relation_type, weight, attributes}]; attributes are JSON text.",
        schemas.QueryCypher,
        "running the query",
        lambda graph, given: write_transaction.run(graph, as_request(requests.CypherRequest, given)),
        runs_statement=True,
        nothing=_ROWS,
    ),
    Tool(
        "delete_graph_entity",
        "Delete an entity",
        "When something was never true: remove it with its relations, one by `id`, or all that fit `ids`, `types`, "
        "`tags` and `attributes`; `dry_run` first. What was true and ended: set its valid_to.",
        schemas.DeleteNodeArguments,
        "deleting",
        _delete_entity,
        "deletes",
    ),
    Tool(
        "delete_graph_relation",
        "Delete a relation",
        "When a relation was never true: remove it, named by its ends and type.",
        schemas.DeleteRelation,
        "deleting the relation",
        lambda graph, given: mutations.delete_edge(graph, as_request(requests.EdgeKeyRequest, given)),
        "deletes",
    ),
    Tool(
        "put_node",
        "Write a version of an entity",
        "Write one entity whole, as its next version: what is left out becomes empty, and the answer says what did. "
        "With based_on_version, the version that you read, a later change of others is never overwritten unseen: the "
        "answer names it, or, where the store's conflict policy is manual, both are kept and it says how to settle it.",
        schemas.PutNode,
        "writing the entity",
        lambda graph, given: versions.put_node(graph, as_request(versioned_api.PutNodeRequest, given)),
        "overwrites",
    ),
    Tool(
        "put_subgraph",
        "Write entities and relations, each by itself",
        "Write versions of up to 50 entities, then up to 100 relations, which may name new entities by `ref`. Each by "
        "itself: one result for each, in order. All or nothing is inject_knowledge_graph.",
        schemas.PutSubgraph,
        "writing the subgraph",
        lambda graph, given: versions.put_subgraph(graph, schemas.subgraph(given)),
        "overwrites",
    ),
    Tool(
        "merge_entities",
        "Merge two entities",
        "Two ids for one thing: relations, tags and what `into` lacks move there, and `id` leads there from then on. "
        "`undo` takes it back.",
        schemas.MergeEntities,
        "merging",
        _merge,
        "writes",
    ),
    Tool(
        "retire",
        "Say until when something was true",
        "For what was true and is no longer: gives an entity (`id`) or a relation (`from`, `to`, `relation_type`) its "
        "valid_to. It stays; reads with valid_at go by it.",
        schemas.Retire,
        "retiring",
        _retire,
        "writes",
    ),
    Tool(
        "entity_history",
        "Read the history of an entity",
        "The states of an entity, newest first, deleted or not: when, by whom, what changed. With `revert_to` it is "
        "written as it was in that version, as a new one; relations stay.",
        schemas.EntityHistory,
        "reading the history",
        _history,
        writes_with="revert_to",
    ),
    Tool(
        "list_relations",
        "List the relations of an entity",
        "Relations that start or end at one entity, page by page: by ordinal, those without one last, then by age.",
        schemas.ListRelations,
        "listing relations",
        _list_relations,
    ),
    Tool(
        "search_batch",
        "Search in several ways at once",
        "Ask the same in up to eight ways, each with its own filters; the answers are joined into one ranking.",
        schemas.SearchBatch,
        "searching",
        lambda graph, given: search.search_batch(graph, as_request(requests.BatchSearchRequest, given)),
        nothing=_FOUND,
    ),
    Tool(
        "retire_entity",
        "Say until when an entity was true",
        "For what was true and is no longer: sets valid_to instead of deleting. It stays, and so do its relations.",
        schemas.RetireEntity,
        "retiring the entity",
        lambda graph, given: mutations.retire_node(graph, as_request(queries.RetireNode, given)),
        "writes",
    ),
    Tool(
        "retire_relation",
        "Say until when a relation was true",
        "For what was true and is no longer: sets valid_to instead of deleting.",
        schemas.RetireRelation,
        "retiring the relation",
        lambda graph, given: mutations.retire_edge(graph, as_request(versioned_api.RetireEdgeRequest, given)),
        "writes",
    ),
    Tool(
        "revert_entity",
        "Go back to a version of an entity",
        "Write an entity as it was in a former version, as a new one; one that was deleted comes back. Relations stay.",
        schemas.RevertEntity,
        "going back to a version",
        lambda graph, given: history.revert(graph, as_request(queries.RevertNode, given)),
        "writes",
    ),
    Tool(
        "describe_schema",
        "Describe the types and tags of a store",
        "The 100 most frequent types and tags with counts and examples, and tags of the form prefix:value by prefix.",
        schemas.DescribeSchema,
        "describing the schema",
        lambda graph, _: reading.describe_schema(graph),
    ),
    Tool(
        "list_tags",
        "List tags",
        "The tags that start with `prefix`, or all, with the number of nodes that have each: the most frequent first.",
        schemas.ListTags,
        "listing tags",
        lambda graph, given: reading.list_tags(graph, as_request(queries.TagsQuery, given)),
    ),
)
