"""The tools that read entities and their relations, now or at a moment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from kgserve.errors import InvalidInput
from kgserve.mcp import answers, arguments, budget
from kgserve.mcp.arguments import Arguments, AsOf, Id, RelationTypes, Tags, Types, ValidAt
from kgserve.mcp.lines import edge_line, facts, moment_asked, node_line
from kgserve.mcp.tool import Tool, counted, quoted, store_of
from kgserve.mcp.work import Reply, Work
from kgserve.model.answers import ListedNode, ListedPage, Node, NodeAnswer
from kgserve.model.versioned import EdgeList
from kgserve.ops import edges, history, nodes

_CONTENT = 15_000
_ATTRIBUTES = 10_000
_TAGS = 3_000
_EDGES = 8_500
_ROOM = budget.STRUCTURED - 500
_LINES = budget.TEXT - 1_000


class ListEntities(Arguments, kw_only=True):
    """Which entities to list, and from where."""

    types: Types | msgspec.UnsetType = msgspec.UNSET
    tags: Tags | msgspec.UnsetType = msgspec.UNSET
    limit: Annotated[int, msgspec.Meta(ge=1, le=nodes.MAX_PAGE, description="Most entities")] = 50
    offset: Annotated[int, msgspec.Meta(ge=0, le=nodes.MAX_OFFSET, description="Entities to pass over")] = 0
    cursor: Annotated[str, msgspec.Meta(description="The next_cursor of the page before, for the next one")] | (
        msgspec.UnsetType
    ) = msgspec.UNSET
    compact: Annotated[bool, msgspec.Meta(description="Without contents and attributes")] = True
    as_of: AsOf | msgspec.UnsetType = msgspec.UNSET
    valid_at: ValidAt | msgspec.UnsetType = msgspec.UNSET


class ListRelations(Arguments, kw_only=True):
    """The relations of one entity, in one direction."""

    id: Id
    direction: Annotated[
        Literal["outgoing", "incoming"], msgspec.Meta(description="Those that start, or that end, at the entity")
    ] = "outgoing"
    relation_types: RelationTypes | msgspec.UnsetType = msgspec.UNSET
    limit: Annotated[int, msgspec.Meta(ge=1, le=edges.MAX_PAGE, description="Most relations")] = 50
    offset: Annotated[int, msgspec.Meta(ge=0, le=edges.MAX_OFFSET, description="Relations to pass over")] = 0
    as_of: AsOf | msgspec.UnsetType = msgspec.UNSET
    valid_at: ValidAt | msgspec.UnsetType = msgspec.UNSET


class Entities(ListedPage, kw_only=True):
    """A page of entities in the order of their ids; ``next_cursor`` is null on the last one."""

    more: answers.More = msgspec.UNSET


class Relations(EdgeList, kw_only=True):
    """A page of relations by ordinal, those without one last, then by age; ``next_offset`` is null on the last one."""

    more: answers.More = msgspec.UNSET


def _get_entity(work: Work, default: str | None, given: arguments.GetEntity) -> Reply:
    found = _found(work, store_of(given.index, default), given)
    part = found.node.content[given.content_offset : given.content_offset + _CONTENT]
    node = msgspec.structs.replace(
        found.node,
        content=part,
        attributes=budget.brief_attributes(found.node.attributes, _ATTRIBUTES),
        tags=found.node.tags and budget.brief_tags(found.node.tags, _TAGS),
    )
    outgoing, incoming = (
        budget.first_fitting(map(budget.brief_edge, each), _EDGES) for each in (found.outgoing, found.incoming)
    )
    answer = answers.Entity(
        node=node,
        outgoing=outgoing,
        incoming=incoming,
        edges_truncated=found.edges_truncated
        or len(outgoing) < len(found.outgoing)
        or len(incoming) < len(found.incoming),
        content_length=len(found.node.content),
    )
    notes = _notes(answer, found.node, given.content_offset + len(part))
    answer.more = notes or msgspec.UNSET
    return Reply(_entity_text(answer, moment_asked(given.as_of, given.valid_at), notes), answer)


def _found(work: Work, store: str, given: arguments.GetEntity) -> NodeAnswer:
    if isinstance(given.version, msgspec.UnsetType):
        past = work.past(given.as_of or msgspec.UNSET)
        return nodes.get_node(work.pool, store, given.id, past, given.valid_at or None)
    if given.as_of or given.valid_at:
        raise InvalidInput("version: goes with neither as_of nor valid_at; leave them out")
    return history.node_version(work.pool, work.historian, store, given.id, given.version)


def _notes(answer: answers.Entity, whole: Node, end: int) -> str:
    found: list[str] = []
    if end < len(whole.content):
        found.append(f"the content goes on to character {len(whole.content):,}: ask with content_offset={end}")
    if answer.edges_truncated:
        found.append("not all edges are here: list_relations has them in pages")
    if answer.node.attributes is not whole.attributes:
        found.append("the attributes are too long: ask for parts with query_cypher and substring()")
    if answer.node.tags is not whole.tags:
        found.append("the tags are too long for one answer")
    return "; ".join(found)


def _entity_text(answer: answers.Entity, when: str, notes: str) -> str:
    node = answer.node
    author = f" by {quoted(node.created_by)}" if node.created_by else ""
    head = f"{quoted(node.id)} ({node.type}){when}, version {node.version}, changed {node.updated_at}{author}"
    lines = [head, *([facts(node).strip()] if facts(node) else []), "", node.content]
    lines += ["", f"Attributes: {msgspec.json.encode(node.attributes).decode()}"] if node.attributes else []
    lines += ["", "=== Outgoing ===", *map(edge_line, answer.outgoing)] if answer.outgoing else []
    lines += ["", "=== Incoming ===", *map(edge_line, answer.incoming)] if answer.incoming else []
    tail = f"\n\nMore: {notes}." if notes else ""
    room = budget.TEXT + 1_000 - len(tail)
    kept = budget.lines_within(lines, room)
    return "\n".join(kept) + ("\n…" if len(kept) < len(lines) else "") + tail


def _list_entities(work: Work, default: str | None, given: ListEntities) -> Reply:
    store, limit = store_of(given.index, default), given.limit
    found = _page(work, store, given, limit)
    # A page that is too large is asked for again as a shorter one, whose cursor goes on where it ends.
    while (fitting := _fitting(found.nodes)) < len(found.nodes):
        limit = fitting
        found = _page(work, store, given, limit)
    shown = [budget.brief(node) for node in found.nodes]
    cursor = found.next_cursor
    more = f"the next page: cursor={quoted(cursor)}, without offset" if cursor else ""
    answer = Entities(nodes=shown, next_cursor=cursor, more=more or msgspec.UNSET)
    when = moment_asked(given.as_of, given.valid_at)
    head = f"{len(shown)} of the entities of {quoted(store)}{when}"
    return Reply(_listing(head, [node_line(node) for node in shown], more), answer)


def _page(work: Work, store: str, given: ListEntities, limit: int) -> ListedPage:
    wanted = nodes.NodeList(
        types=tuple(given.types or ()),
        tags=tuple(given.tags or ()),
        valid_at=given.valid_at or None,
        limit=limit,
        cursor=given.cursor or None,
        offset=given.offset,
    )
    past = work.past(given.as_of or msgspec.UNSET)
    if given.compact:
        return nodes.page_compact(work.pool, store, wanted, past)
    whole = nodes.page_nodes(work.pool, store, wanted, past)
    listed = [ListedNode(**msgspec.structs.asdict(node)) for node in whole.nodes]
    return ListedPage(nodes=listed, next_cursor=whole.next_cursor)


def _fitting(found: Sequence[ListedNode]) -> int:
    """How many of the first ones fit, as text and as values."""
    brief = [budget.brief(node) for node in found]
    lines = budget.lines_within([node_line(node) for node in brief], _LINES)
    return max(min(len(budget.first_fitting(brief, _ROOM)), len(lines)), 1)


def _list_relations(work: Work, default: str | None, given: ListRelations) -> Reply:
    wanted = edges.EdgesOfNode(
        node_id=given.id,
        side=given.direction,
        kinds=tuple(given.relation_types or ()),
        limit=given.limit,
        offset=given.offset,
        valid_at=given.valid_at or None,
    )
    past = work.past(given.as_of or msgspec.UNSET)
    found = edges.list_edges(work.pool, store_of(given.index, default), wanted, past)
    shown = budget.first_fitting(map(budget.brief_edge, found.edges), _ROOM)
    shown = shown[: len(budget.lines_within([edge_line(edge) for edge in shown], _LINES))]
    next_offset = found.next_offset if len(shown) == len(found.edges) else given.offset + len(shown)
    more = "" if next_offset is None else f"the next page: offset={next_offset}"
    answer = Relations(edges=shown, next_offset=next_offset, more=more or msgspec.UNSET)
    when = moment_asked(given.as_of, given.valid_at)
    head = f"{counted(len(shown), f'{given.direction} relation')} of {quoted(given.id)}{when}"
    return Reply(_listing(head, [edge_line(edge) for edge in shown], more), answer)


def _listing(head: str, lines: list[str], more: str) -> str:
    return "\n".join([head, *lines, *([f"More: {more}."] if more else [])])


TOOLS = (
    Tool(
        "get_entity",
        "Read one entity",
        "One entity with its whole content, its attributes and its relations in both directions: as it is, as of a "
        "moment, or in one of its versions, which comes without relations.",
        arguments.GetEntity,
        answers.Entity,
        "reads",
        "reading the entity",
        _get_entity,
    ),
    Tool(
        "list_entities",
        "List entities",
        "Entities in the order of their ids, of any of `types` and with all of `tags`, page by page. To find by words "
        "or meaning use search_knowledge.",
        ListEntities,
        Entities,
        "reads",
        "listing entities",
        _list_entities,
    ),
    Tool(
        "list_relations",
        "List the relations of an entity",
        "Relations that start or end at one entity, page by page: by ordinal, those without one last, then by age.",
        ListRelations,
        Relations,
        "reads",
        "listing relations",
        _list_relations,
    ),
)
