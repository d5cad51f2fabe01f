"""Answers for agents: as text to read, and as values, both no longer than clients take; long ones say how to go on.

An agent pays for what it reads, and clients cut off what is longer. What is too long loses long contents and attributes
first (`brief`), then what comes last (`fitted`); what was left out, and how to get it, is ``more``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import singledispatch
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from kgserve.errors import ConflictManual
from kgserve.mcp import schemas
from kgserve.model.answers import (
    BatchHit,
    BatchSearchAnswer,
    ContextAnswer,
    CypherAnswer,
    DeleteEdgeAnswer,
    DeleteNodeAnswer,
    Edge,
    FieldChange,
    InjectAnswer,
    ListedNode,
    ListedPage,
    Node,
    NodeAnswer,
    NodeHistory,
    NodeState,
    ReachedNode,
    SchemaDescription,
    SearchAnswer,
    SearchHit,
    Skipped,
    TagFreq,
    TagList,
    TraverseAnswer,
)
from kgserve.model.stores import DropAnswer, StoreList
from kgserve.model.versioned import EdgeList, EdgeResult, NodeResult, PutNodeAnswer, PutSubgraphAnswer, RetireAnswer

TEXT = 25_000
"""Characters of readable text."""

STRUCTURED = 50_000
"""Bytes of structured content, as JSON."""

_LINES = TEXT - 1_000
_PAGE = STRUCTURED - 500
_THIRD = STRUCTURED // 3 - 100

_CONTENT_OF_ONE = 15_000
_ATTRIBUTES_OF_ONE = 10_000
_TAGS_OF_ONE = 3_000
_EDGES_OF_ONE = 8_500

_CONTENT = 1_000
_ATTRIBUTES = 1_000
_SUMMARY = 500
_TAGS = 1_000
_ERROR = 120
_VALUE = 1_000
_CHANGES = 5_000

_TEASER_LINE = 80
_TAGS_LINE = 200
_VALUE_LINE = 120
_HEADS_LINE = 20
_EXCERPT = 300
_SKIPPED_SHOWN = 20

_NEARER = "use a smaller depth, start nearer to what you need, or ask with query_cypher"
_SHORTENED = "long contents are shortened; get_entity gives one whole"

H = TypeVar("H", SearchHit, BatchHit)
T = TypeVar("T")

_encode = msgspec.json.Encoder().encode


class Reply(NamedTuple):
    """An answer twice over, as text and as values, and what was left out of the values."""

    text: str
    values: msgspec.Struct
    more: str = ""


@singledispatch
def present(answer: Any, _given: Any, _store: str) -> Reply:
    """An answer of a tool, by its type, to the arguments given and of the store meant."""
    raise TypeError(f"there are no words for {type(answer).__name__}")


@present.register
def _inject(found: InjectAnswer, given: schemas.Inject | schemas.RevertEntity, store: str) -> Reply:
    if isinstance(given, schemas.RevertEntity):
        return _revert(found, given)
    made = (
        f"{counted(found.nodes_sent, 'node')} ({found.nodes_created:,} new, {found.nodes_updated:,} changed, "
        f"{found.nodes_unchanged:,} unchanged) and {counted(found.edges_sent, 'edge')} ({found.edges_created:,} "
        f"new, {found.edges_updated:,} changed, {found.edges_unchanged:,} unchanged)"
    )
    lines = [f'Stored in "{store}": {made}. Sequence {found.sequence}.']
    if found.edges_skipped_count:
        skipped = counted(found.edges_skipped_count, "edge")
        lines.append(f"Skipped {skipped}; add the missing nodes and send them again:")
        lines += [f"  {_arrow(edge)}: {edge.reason}" for edge in found.edges_skipped[:_SKIPPED_SHOWN]]
    return Reply(_text(lines), found)


def _revert(found: InjectAnswer, given: schemas.RevertEntity) -> Reply:
    if found.nodes_unchanged:
        said = f"is as it was in version {given.version} already; nothing changed"
    else:
        said = f"is again as it was in version {given.version}, as a new version"
    return Reply(f"{quoted(given.id)} {said}. Sequence {found.sequence}.", found)


@present.register
def _delete_entity(found: DeleteNodeAnswer, _given: schemas.DeleteEntity, _store: str) -> Reply:
    if not found.existed:
        return Reply(f"There was no entity {quoted(found.deleted_id)}; nothing changed.", found)
    return Reply(f"Deleted {quoted(found.deleted_id)} with {counted(found.edges_deleted, 'edge')}.", found)


@present.register
def _delete_relation(found: DeleteEdgeAnswer, given: schemas.DeleteRelation, _store: str) -> Reply:
    edge = _arrow(given)
    return Reply(f"Deleted {edge}." if found.existed else f"There was no {edge}; nothing changed.", found)


@present.register
def _put(found: PutNodeAnswer, _given: schemas.PutNode, _store: str) -> Reply:
    node = found.node
    named = f"{quoted(node.id)} ({node.type})"
    done = f"Created {named}" if found.created else f"{named} is now"
    text = f"{done} at version {node.version}{_facts(brief(node))}. Sequence {found.sequence}."
    return _put_values(text, schemas.Put(ok=True, node=node, created=found.created, sequence=found.sequence))


def conflict(error: ConflictManual) -> Reply:
    """What to say of a node that was kept beside other versions, in the form of `put_node`'s answers."""
    node: Node = error.node
    others = ", ".join(map(str, node.conflicts or ()))
    text = (
        f"conflict_manual: {error}.\nTo settle it read each other head (get_entity with id={quoted(node.id)} and "
        f"version={others}), join what they say with yours, and put_node the whole with lineage_id={quoted(node.id)} "
        f"and based_on_version={node.version}. Until then all of these versions are kept."
    )
    return _put_values(text, schemas.Put(ok=False, node=node, created=False, sequence=node.sequence))


def _put_values(text: str, values: schemas.Put) -> Reply:
    if fits(values):
        return Reply(text, values)
    return Reply(text, replace(values, node=brief(values.node)), "the node is shortened; get_entity has it whole")


@present.register
def _put_subgraph(found: PutSubgraphAnswer, _given: schemas.PutSubgraph, store: str) -> Reply:
    created = sum(node.created for node in found.nodes)
    nodes = counted(sum(not node.error for node in found.nodes), "node")
    edges = counted(sum(not edge.error for edge in found.edges), "edge")
    lines = [f'Stored in "{store}": {nodes} ({created} new) and {edges}. Sequence {found.sequence}.']
    wrong = [f"  nodes[{place}]: {node.error}" for place, node in enumerate(found.nodes) if node.error]
    wrong += [f"  edges[{place}]: {edge.error}" for place, edge in enumerate(found.edges) if edge.error]
    made = [
        f"  nodes[{place}]: {quoted(node.lineage_id)}, version {node.version}"
        for place, node in enumerate(found.nodes)
        if node.lineage_id
    ]
    lines += [f"Not stored as asked, {len(wrong)}:", *wrong] if wrong else []
    lines += ["Versions written:", *made] if made else []
    if fits(found):
        return Reply(_text(lines), found)
    values = replace(found, nodes=list(map(brief, found.nodes)), edges=list(map(brief, found.edges)))
    more = "refs, ids of edges and long errors were left out for their size; the order is as sent"
    return Reply(_text(lines), values, more)


@present.register
def _retire(found: RetireAnswer, given: schemas.RetireEntity | schemas.RetireRelation, _store: str) -> Reply:
    what = quoted(given.id) if isinstance(given, schemas.RetireEntity) else _arrow(given)
    end = moment(found.valid_to)
    done = f"{what} is true until {end}" if found.changed else f"{what} had ended at {end} already; nothing changed"
    return Reply(f"{done}. Version {found.version}, sequence {found.sequence}.", found)


@present.register
def _drop_store(found: DropAnswer, _given: schemas.DropStore, _store: str) -> Reply:
    return Reply(f'Dropped the store "{found.dropped}" and everything in it.', found)


@present.register
def _traverse(found: TraverseAnswer, given: schemas.Traverse, _store: str) -> Reply:
    when = _moment_asked(given)
    head = f"Traversal from {quoted(given.start_id)} (depth {given.depth}){when} — "
    head += f"{len(found.nodes)} nodes, {len(found.edges)} edges"
    if not found.nodes:
        return Reply(f"{head}\n\nThere is no node {quoted(given.start_id)}{when}.", found)
    marked = (_node_line(node, "[ ]" if node.depth else "[*]") for node in found.nodes)
    shown = lines_within(marked, TEXT * 3 // 5)
    links = lines_within(map(_edge_line, found.edges), TEXT * 2 // 5 - 500)
    lines = [head, "", "=== Nodes ===", *shown, "", "=== Edges ===", *links]
    left = (len(found.nodes) - len(shown), len(found.edges) - len(links))
    if any(left) or found.truncated:
        beyond = " There were more within reach." if found.truncated else ""
        lines += ["", f"Not shown: {left[0]:,} nodes and {left[1]:,} edges.{beyond} To see them, {_NEARER}."]
    return Reply("\n".join(lines), *_walked(found))


def _walked(found: TraverseAnswer) -> tuple[TraverseAnswer, str]:
    if fits(found):
        return found, ""
    nodes = fitted(found.nodes, STRUCTURED * 3 // 5)
    ids = {node.id for node in nodes}
    between = (edge for edge in found.edges if edge.source in ids and edge.target in ids)
    edges = fitted(between, STRUCTURED * 2 // 5 - 500)
    complete = len(nodes) == len(found.nodes) and len(edges) == len(found.edges)
    reached = f"{len(found.nodes):,} nodes and {len(found.edges):,} edges were reached; {_NEARER}"
    values = replace(found, nodes=nodes, edges=edges, count=len(nodes), truncated=found.truncated or not complete)
    return values, _SHORTENED if complete else reached


@present.register
def _get_entity(found: NodeAnswer, given: schemas.GetEntity, _store: str) -> Reply:
    whole = found.node
    end = given.content_offset + _CONTENT_OF_ONE
    node = replace(
        whole,
        content=whole.content[given.content_offset : end],
        attributes=_brief_attributes(whole.attributes, _ATTRIBUTES_OF_ONE),
        tags=whole.tags and _brief_tags(whole.tags, _TAGS_OF_ONE),
    )
    outgoing, incoming = fitted(found.outgoing, _EDGES_OF_ONE), fitted(found.incoming, _EDGES_OF_ONE)
    cut = len(outgoing) < len(found.outgoing) or len(incoming) < len(found.incoming)
    values = schemas.Entity(
        node=node,
        outgoing=outgoing,
        incoming=incoming,
        edges_truncated=found.edges_truncated or cut,
        content_length=len(whole.content),
    )
    more = _more_of_one(values, whole, end)
    return Reply(_entity_text(values, _moment_asked(given), more), values, more)


def _more_of_one(values: schemas.Entity, whole: Node, end: int) -> str:
    found: list[str] = []
    if end < len(whole.content):
        found.append(f"the content goes on to character {len(whole.content):,}: ask with content_offset={end}")
    if values.edges_truncated:
        found.append("not all edges are here: list_relations has them in pages")
    if values.node.attributes is not whole.attributes:
        found.append("the attributes are too long: ask for parts with query_cypher and substring()")
    if values.node.tags is not whole.tags:
        found.append("the tags are too long for one answer")
    return "; ".join(found)


def _entity_text(values: schemas.Entity, when: str, more: str) -> str:
    node = values.node
    author = f" by {quoted(node.created_by)}" if node.created_by else ""
    head = f"{quoted(node.id)} ({node.type}){when}, version {node.version}, changed {node.updated_at}{author}"
    facts = _facts(node).strip()
    lines = [head, *([facts] if facts else []), "", node.content]
    lines += ["", f"Attributes: {_json(node.attributes)}"] if node.attributes else []
    lines += ["", "=== Outgoing ===", *map(_edge_line, values.outgoing)] if values.outgoing else []
    lines += ["", "=== Incoming ===", *map(_edge_line, values.incoming)] if values.incoming else []
    tail = f"\n\nMore: {more}." if more else ""
    kept = lines_within(lines, TEXT + 1_000 - len(tail))
    return "\n".join(kept) + ("\n…" if len(kept) < len(lines) else "") + tail


def fitting(nodes: Sequence[ListedNode]) -> int:
    """How many of a page's first nodes can be presented, as text and as values; one at least."""
    return max(len(_page(nodes, _node_line)[0]), 1)


@present.register
def _list_entities(found: ListedPage, given: schemas.ListEntities, store: str) -> Reply:
    nodes, cursor = list(map(brief, found.nodes)), found.next_cursor
    more = f"the next page: cursor={quoted(cursor)}, without offset" if cursor else ""
    head = f"{len(nodes)} of the entities of {quoted(store)}{_moment_asked(given)}"
    return Reply(_listing([head, *map(_node_line, nodes)], more), replace(found, nodes=nodes), more)


@present.register
def _list_relations(found: EdgeList, given: schemas.ListRelations, _store: str) -> Reply:
    edges, lines = _page(found.edges, _edge_line)
    next_offset = found.next_offset if len(edges) == len(found.edges) else given.offset + len(edges)
    more = "" if next_offset is None else f"the next page: offset={next_offset}"
    head = f"{counted(len(edges), f'{given.direction} relation')} of {quoted(given.id)}{_moment_asked(given)}"
    return Reply(_listing([head, *lines], more), replace(found, edges=edges, next_offset=next_offset), more)


@present.register
def _history(found: NodeHistory, _given: schemas.EntityHistory, _store: str) -> Reply:
    states, blocks = _page(found.states, _state_lines, TEXT - 500)
    next_before = found.next_before if len(states) == len(found.states) else states[-1].from_sequence
    more = "" if next_before is None else f"older states: before={next_before}"
    head = f"{counted(len(states), 'state')} of {quoted(found.id)}, newest first"
    return Reply(_listing([head, *blocks], more), replace(found, states=states, next_before=next_before), more)


def _state_lines(state: NodeState) -> str:
    until = "now" if state.recorded_to is None else moment(state.recorded_to)
    end = ", then deleted" if state.deleted else ""
    author = f" by {quoted(state.node.created_by)}" if state.node.created_by else ""
    head = f"version {state.node.version}, sequence {state.from_sequence}{author}: "
    head += f"{moment(state.recorded_from)} to {until}{end}"
    return "\n".join([head, *(f"  {each.path}: {_value(each.before)} -> {_value(each.after)}" for each in state.diff)])


def _value(value: Any) -> str:
    return shortened(_json(value), _VALUE_LINE)


@present.register
def _search(found: SearchAnswer, given: schemas.Search, _store: str) -> Reply:
    hits, more = _hits(found.hits, given.offset)
    if not more and len(hits) == given.limit:
        more = f"the next hits: offset={given.offset + len(hits)}"
    return Reply(_hits_text(hits, given.query, given.offset, more), replace(found, hits=hits), more)


@present.register
def _search_batch(found: BatchSearchAnswer, given: schemas.SearchBatch, _store: str) -> Reply:
    hits, more = _hits(found.hits, None)
    if not more and found.unique_hits > len(hits):
        more = f"{found.unique_hits - len(hits):,} hits more: a higher limit, or narrower queries"
    query = " / ".join(variant.query for variant in given.queries)
    return Reply(_hits_text(hits, query, 0, more), replace(found, hits=hits), more)


def _hits(hits: list[H], offset: int | None) -> tuple[list[H], str]:
    """Hits that fit, and how to get the others."""
    if fits(hits):
        return hits, ""
    kept = fitted(hits, STRUCTURED)
    if len(kept) == len(hits):
        return kept, _SHORTENED
    onwards = "a lower limit" if offset is None else f"offset={offset + len(kept)}"
    return kept, f"{len(hits) - len(kept):,} hits more: {onwards}; get_entity gives one whole"


def _hits_text(hits: Sequence[SearchHit | BatchHit], query: str, offset: int, more: str) -> str:
    head = f"{counted(len(hits), 'hit')} for {quoted(shortened(query, _EXCERPT))}"
    if not hits:
        return f"{head}."
    kept = lines_within((_hit_line(number, hit) for number, hit in enumerate(hits, offset + 1)), _LINES)
    if len(kept) < len(hits):
        more = f"{len(hits) - len(kept):,} hits are not shown here: offset={offset + len(kept)} or a lower limit"
    return "\n".join([head, "", *kept, *([""] if more else []), *_more_line(more)])


def _hit_line(number: int, hit: SearchHit | BatchHit) -> str:
    node = hit.node
    content = f"\n   {shortened(node.content, _EXCERPT)}" if node.content else ""
    return f"{number}. {quoted(node.id)} ({node.type}), score {hit.score:.3f}{content}"


@present.register
def _context(found: ContextAnswer, given: schemas.Context, _store: str) -> Reply:
    if not found.ids:
        return Reply(f"Nothing was found for {quoted(shortened(given.query, _EXCERPT))}.", found)
    tail = "\n\nThere is more than the budget allowed: raise budget, or ask more narrowly." if found.truncated else ""
    return Reply(found.text + tail, found)


@present.register
def _query(found: CypherAnswer, _given: schemas.QueryCypher, _store: str) -> Reply:
    rows = fitted(found.rows, STRUCTURED)
    lines = lines_within(map(_json, rows), _LINES)
    head = f"{counted(len(found.rows), 'row')} of {_json(found.columns)}, {found.took_ms} ms"
    values = replace(found, rows=rows, row_count=len(rows), truncated=found.truncated or len(rows) < len(found.rows))
    return Reply(_listing([head, *lines], _more_rows(found, len(lines))), values, _more_rows(found, len(rows)))


def _more_rows(found: CypherAnswer, shown: int) -> str:
    if shown < len(found.rows):
        return f"{len(found.rows) - shown:,} rows more: fewer or shorter columns (substring), or SKIP and LIMIT"
    return "there are more rows: raise max_rows, or use SKIP and LIMIT" if found.truncated else ""


@present.register
def _list_stores(found: StoreList, given: schemas.ListStores, _store: str) -> Reply:
    shown = given.offset + len(found.stores)
    more = f"the next stores: offset={shown}" if found.stores and shown < found.count else ""
    lines = [
        f"  {store.name}: {counted(store.nodes, 'node')}, {counted(store.edges, 'edge')}, {store.state}"
        for store in found.stores
    ]
    none = "There are no stores yet; inject_knowledge_graph makes one"
    return Reply(_listing([counted(found.count, "store") if found.count else none, *lines], more), found, more)


@present.register
def _describe_store(found: schemas.Description, _given: schemas.DescribeStore, _store: str) -> Reply:
    head = f'Store "{found.name}": {counted(found.nodes, "node")}, {counted(found.edges, "edge")}, '
    lines = [f"{head}sequence {found.sequence}", "", "=== Types ==="]
    for described in found.types:
        lines.append(f"  {described.type}: {described.count:,}")
        lines += [
            f"    {quoted(example.id)}" + (f" {quoted(example.content)}" if example.content else "")
            for example in described.examples
        ]
    lines += ["", "=== Relation types ==="]
    lines += [f"  {name}: {count:,}" for name, count in found.relation_types.items()]
    return Reply(_text(lines), found)


@present.register
def _describe_schema(found: SchemaDescription, _given: schemas.DescribeSchema, _store: str) -> Reply:
    lists = {name: fitted(getattr(found, name), _THIRD) for name in ("kinds", "tag_prefixes", "tags")}
    cut = any(len(kept) < len(getattr(found, name)) for name, kept in lists.items())
    more = "less frequent ones were left out for their size; list_tags takes a prefix" if cut else ""
    values = replace(found, **lists)
    return Reply(_text([*_schema_lines(values), *_more_line(more)]), values, more)


def _schema_lines(values: SchemaDescription) -> list[str]:
    lines = [f'Schema of "{values.store}": {counted(values.node_count, "node")}', "", "=== Types ==="]
    for kind in values.kinds:
        lines.append(f"  {kind.kind}: {kind.count:,}")
        lines += [f"    {quoted(example)}" for example in kind.examples]
    lines += ["", "=== Prefixes of tags ==="]
    lines += [f"  {each.prefix}: {each.count:,} ({', '.join(each.values)})" for each in values.tag_prefixes]
    return [*lines, "", "=== Tags ===", *_tag_lines(values.tags)]


@present.register
def _list_tags(found: TagList, given: schemas.ListTags, _store: str) -> Reply:
    tags, more = fitted(found.tags, STRUCTURED - 200), ""
    if len(tags) < len(found.tags):
        more = "less frequent ones were left out for their size; ask with a longer prefix"
    elif len(tags) == given.limit:
        more = "there may be less frequent ones; ask with a longer prefix"
    which = f" starting with {quoted(given.prefix)}" if given.prefix else ""
    lines = lines_within([f"{counted(len(tags), 'tag')}{which}", *_tag_lines(tags)], TEXT - 200)
    return Reply(_listing(lines, more), replace(found, tags=tags), more)


def _tag_lines(tags: list[TagFreq]) -> list[str]:
    return [f"  {quoted(each.tag)}: {each.count:,}" for each in tags]


def fits(value: object, room: int = STRUCTURED) -> bool:
    """Whether ``value`` takes at most ``room`` bytes of JSON."""
    return len(_encode(value)) <= room


def fitted(items: Iterable[T], room: int) -> list[T]:
    """The first of ``items``, each made `brief`, that take at most ``room`` bytes of JSON."""
    return first_fitting(map(brief, items), room)


def first_fitting(items: Iterable[T], room: int) -> list[T]:
    """The longest beginning of ``items`` that takes at most ``room`` bytes of JSON."""
    return _beginning(items, room, lambda item: len(_encode(item)))


def lines_within(lines: Iterable[str], room: int) -> list[str]:
    """The longest beginning of ``lines`` that takes at most ``room`` characters with their line ends."""
    return _beginning(lines, room, len)


def _beginning(items: Iterable[T], room: int, size: Callable[[T], int]) -> list[T]:
    kept: list[T] = []
    for item in items:
        room -= size(item) + 1
        if room < 0:
            break
        kept.append(item)
    return kept


def brief(item: T) -> T:
    """An item of a list with what is long in it shortened or left out."""
    shorten = _BRIEF.get(type(item))
    return item if shorten is None else shorten(item)


def _brief_node(node: Node | ListedNode) -> Node | ListedNode:
    return replace(
        node,
        content=node.content and shortened(node.content, _CONTENT),
        attributes=node.attributes and _brief_attributes(node.attributes, _ATTRIBUTES),
        summary=node.summary and shortened(node.summary, _SUMMARY),
        tags=node.tags and _brief_tags(node.tags, _TAGS),
    )


def _brief_edge(edge: Edge) -> Edge:
    return replace(edge, attributes=_brief_attributes(edge.attributes, _ATTRIBUTES))


def _brief_hit(hit: SearchHit | BatchHit) -> SearchHit | BatchHit:
    return replace(hit, node=brief(hit.node))


def _brief_state(state: NodeState) -> NodeState:
    changes = [replace(each, before=_brief_value(each.before), after=_brief_value(each.after)) for each in state.diff]
    kept = first_fitting(changes, _CHANGES)
    if len(kept) < len(changes):
        kept.append(FieldChange(path="…", before=None, after=f"{len(changes) - len(kept):,} more changes"))
    return replace(state, node=brief(state.node), diff=kept)


def _brief_node_result(result: NodeResult) -> NodeResult:
    return replace(result, ref=None, error=result.error and shortened(result.error, _ERROR))


def _brief_edge_result(result: EdgeResult) -> EdgeResult:
    return EdgeResult(error=result.error and shortened(result.error, _ERROR))


_BRIEF: dict[type[Any], Callable[[Any], Any]] = {
    **dict.fromkeys((Node, ReachedNode, ListedNode), _brief_node),
    **dict.fromkeys((SearchHit, BatchHit), _brief_hit),
    Edge: _brief_edge,
    NodeState: _brief_state,
    NodeResult: _brief_node_result,
    EdgeResult: _brief_edge_result,
}


def _brief_value(value: Any) -> Any:
    if isinstance(value, str):
        return shortened(value, _VALUE // 2)
    return value if fits(value, _VALUE) else "… left out for its size"


def _brief_attributes(attributes: dict[str, Any], room: int) -> dict[str, Any]:
    """The attributes, or a word in their place when they take more than ``room`` bytes."""
    return attributes if not attributes or fits(attributes, room) else {"…": "left out for its size"}


def _brief_tags(tags: list[str], room: int) -> list[str]:
    """The tags, or the first ones and a sign when they take more than ``room`` bytes."""
    kept = first_fitting(tags, room)
    return tags if len(kept) == len(tags) else [*kept, "…"]


def shortened(text: str, most: int, mark: str = "…") -> str:
    """``text`` if it has at most ``most`` characters, else its beginning and ``mark``."""
    return text if len(text) <= most else text[: most - len(mark)] + mark


def _text(lines: Iterable[str]) -> str:
    return "\n".join(lines_within(lines, TEXT))


def _more_line(more: str) -> list[str]:
    return [f"More: {more}."] if more else []


def _listing(lines: Iterable[str], more: str) -> str:
    return "\n".join([*lines, *_more_line(more)])


def _page(items: Sequence[T], line: Callable[[T], str], room: int = _LINES) -> tuple[list[T], list[str]]:
    """The first items that fit as values and as lines of text, and those lines."""
    shown = fitted(items, _PAGE)
    lines = lines_within(map(line, shown), room)
    return shown[: len(lines)], lines


def quoted(text: str) -> str:
    """Text in double quotes on one line, as JSON writes it."""
    return _json(text)


def _json(value: Any) -> str:
    return _encode(value).decode()


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 node, 2 nodes."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def moment(text: str) -> str:
    """A time without a fraction that is none."""
    return text.replace(".000000Z", "Z")


def _moment_asked(given: schemas.Traverse | schemas.GetEntity | schemas.ListEntities | schemas.ListRelations) -> str:
    """The moment that a call asks for, to be put behind what was asked; empty for the present."""
    as_of = f" as of {given.as_of}" if given.as_of else ""
    if not given.valid_at:
        return as_of
    return as_of + (", true or not" if given.valid_at == "any" else f", true at {given.valid_at}")


def _arrow(edge: Edge | Skipped | schemas.DeleteRelation) -> str:
    return f"{quoted(edge.source)} -[{edge.relation_type}]-> {quoted(edge.target)}"


def _node_line(node: Node | ListedNode, mark: str = "-") -> str:
    """A node in one line, its content shortened."""
    content = f" content={quoted(shortened(node.content, _TEASER_LINE, '...'))}" if node.content else ""
    return f"  {mark} id={quoted(node.id)} type={quoted(node.type)}{content}{_facts(node)}"


def _edge_line(edge: Edge) -> str:
    """An edge in one line."""
    ordinal = [f"ordinal={edge.ordinal}"] if isinstance(edge.ordinal, int) else []
    return f"  {_arrow(edge)} ({', '.join([f'weight={edge.weight:.2f}', *ordinal, *_validity(edge)])})"


def _facts(node: Node | ListedNode) -> str:
    """What a node has beyond id, type and content, as `` name=value …``; empty when it has nothing."""
    return "".join(f" {fact}" for fact in _each_fact(node))


def _each_fact(node: Node | ListedNode) -> Iterator[str]:
    if node.summary:
        yield f"summary={quoted(shortened(node.summary, _TEASER_LINE, '...'))}"
    if node.tags:
        yield f"tags={shortened(', '.join(map(quoted, node.tags)), _TAGS_LINE)}"
    yield from _validity(node)
    if node.stale:
        yield "stale"
    if node.conflicts:
        heads = ",".join(map(str, node.conflicts[:_HEADS_LINE]))
        yield f"version={node.version} conflicts_with_versions={heads}" + (
            ",…" if len(node.conflicts) > _HEADS_LINE else ""
        )
    if node.superseded_by:
        yield f"superseded_by={node.superseded_by}"


def _validity(thing: Node | ListedNode | Edge) -> Iterator[str]:
    if thing.valid_from:
        yield f"valid_from={moment(thing.valid_from)}"
    if thing.valid_to:
        yield f"valid_to={moment(thing.valid_to)}"
