"""Answers for agents, twice over: as text to read, and as values, with the same in both and neither too long.

An agent pays for what it reads, some hosts show it the values alone, and clients cut off what is long. So lists hold
beginnings of contents, what does not fit comes off at the end, and what was left out, and how to get it, is ``more``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import singledispatch
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from kgserve.errors import ConflictManual
from kgserve.graph import answers
from kgserve.graph.compat.versioned_api import (
    EdgeList,
    EdgeResult,
    NodeResult,
    PutNodeAnswer,
    PutSubgraphAnswer,
    RetireAnswer,
)
from kgserve.graph.merge_api import MergeAnswer, NotRestored, UnmergeAnswer
from kgserve.server.mcp import schemas
from kgserve.server.mcp.values import (
    EXCERPT,
    LONG,
    MOST,
    TEASER,
    as_json,
    brief_attributes,
    brief_tags,
    encode,
    first_fitting,
    fits,
    is_missing,
    item,
    items,
    lean,
    lines_within,
    outline,
    own_attributes,
    shortened,
)
from kgserve.storage.model import kinds

_ROOM = MOST - 1_000
"""Of what an answer is about, without its frame."""

_CONTENT_OF_ONE = 12_000
_ATTRIBUTES_OF_ONE = 4_000
_TAGS_OF_ONE = 1_500
_EDGES_OF_ONE = 3_000

_ERROR = 120
_TAGS_LINE = 200
_ATTRIBUTES_LINE = 300
_VALUE_LINE = 120
_HEADS_LINE = 20
_SKIPPED_SHOWN = 20

_NODES = "=== Nodes ==="
_EDGES = "=== Edges ==="
_NEARER = "use a smaller depth, start nearer to what you need, or ask with query_cypher"

T = TypeVar("T")


class ToolReply(NamedTuple):
    """An answer twice over. ``more``: what was left out, and how to get it. ``hint``: what else is worth knowing.

    ``alone``: nothing is said beside it, for it has the form of somebody else's. ``names_store``: whether the text says
    which store was meant; the values always do.
    """

    text: str
    values: dict[str, Any]
    more: str = ""
    hint: str = ""
    alone: bool = False
    names_store: bool = True

    def said(self, store: str, notes: Sequence[str] = ()) -> tuple[str, dict[str, Any]]:
        """The text and the values, both with the name of the store and all that is to be said beside them."""
        if self.alone:
            return self.text, self.values
        beside = {"more": self.more, "hint": self.hint, "notes": list(notes)}
        values = {"store": store, **self.values} if store else dict(self.values)
        values |= {name: said for name, said in beside.items() if said}
        names_store = store and self.names_store and f'"{store}"' not in self.text
        named = [f'Store "{store}".'] if names_store else []
        more = [f"More: {self.more}."] if self.more else []
        hint = [f"Hint: {self.hint}."] if self.hint else []
        return "\n".join([self.text, *more, *hint, *(f"Note: {note}" for note in notes), *named]), values


@singledispatch
def present(answer: Any, _given: Any, _store: str) -> ToolReply:
    """An answer of a tool, by its type, to the arguments given and of the store meant."""
    raise TypeError(f"there are no words for {type(answer).__name__}")


@present.register
def _inject(found: answers.InjectAnswer, given: msgspec.Struct, store: str) -> ToolReply:
    if isinstance(given, schemas.RevertEntity):
        return _revert(found, given.id, given.version)
    if isinstance(given, schemas.EntityHistory):
        return _revert(found, given.id, given.revert_to or 0)
    made = ", ".join(_changed(found, "nodes") + _changed(found, "edges")) or "nothing"
    lines = [f'Stored in "{store}": {made}. Sequence {found.sequence}.', *_merged_lines(found)]
    counts = _counts(found) | ({"merged_count": found.merged_count} if found.merged_count else {})
    if not found.edges_skipped_count:
        return ToolReply(joined(lines), counts, hint=_followed(found.redirected))
    lines.append(f"Skipped {counted(found.edges_skipped_count, 'edge')}:")
    lines += [f"  {_arrow(edge)}: {edge.reason}" for edge in found.edges_skipped[:_SKIPPED_SHOWN]]
    skipped = first_fitting(map(msgspec.to_builtins, found.edges_skipped[:_SKIPPED_SHOWN]), _ROOM // 2)
    hint = "add the nodes that are missing and send the skipped edges again"
    hint = "; ".join(filter(None, (hint, _followed(found.redirected))))
    return ToolReply(joined(lines), {**counts, "edges_skipped": skipped}, hint=hint)


def _merged_lines(found: answers.InjectAnswer) -> list[str]:
    """Say which items of a batch are about the same as an earlier one."""
    if not found.merged:
        return []
    named = ", ".join(f"{each.path} and {each.earlier_path}" for each in found.merged[:_SKIPPED_SHOWN])
    return [f"Written as one, the later counts where both say something: {named}."]


def _followed(redirected: dict[str, str] | UnsetType) -> str:
    """What is said of edges that went to other nodes than those that they named, which had been merged."""
    each = [f"{quoted(source)} is {quoted(to)}" for source, to in [*(redirected or {}).items()][:_SKIPPED_SHOWN]]
    return f"ends that were merged are followed: {', '.join(each)}" if each else ""


def _counts(found: answers.InjectAnswer) -> dict[str, Any]:
    """What a write did, without what it did not do."""
    counts = msgspec.structs.asdict(found)
    unasked = ("nodes_sent", "edges_sent", "edges_skipped")
    return {name: number for name, number in counts.items() if number and name not in unasked}


def _changed(found: answers.InjectAnswer, what: str) -> list[str]:
    words = {"created": "new", "updated": "changed", "unchanged": "unchanged"}
    numbers = ((getattr(found, f"{what}_{name}"), word) for name, word in words.items())
    return [f"{counted(number, what[:-1])} {word}" for number, word in numbers if number]


def _revert(found: answers.InjectAnswer, entity: str, version: int) -> ToolReply:
    values = {"changed": not found.nodes_unchanged, **_counts(found)}
    if found.nodes_unchanged:
        said = f"is as it was in version {version} already; nothing changed"
    else:
        said = f"is again as it was in version {version}, as a new version"
    return ToolReply(f"{quoted(entity)} {said}. Sequence {found.sequence}.", values)


@present.register
def _delete_entity(found: answers.DeleteNodeAnswer, _given: schemas.DeleteNodeArguments, _store: str) -> ToolReply:
    if not found.existed:
        return ToolReply(
            f"There was no entity {quoted(found.deleted_id)}; nothing changed.", msgspec.to_builtins(found)
        )
    text = f"Deleted {quoted(found.deleted_id)} with {counted(found.edges_deleted, 'edge')}."
    hint = ""
    if found.memories_about:
        text += f" {_memories_left(found)}"
        hint = _FORGET_THEM
    return ToolReply(text, msgspec.to_builtins(found), hint=hint)


@present.register
def _delete_entities(found: answers.DeleteNodesAnswer, _given: schemas.DeleteNodeArguments, _store: str) -> ToolReply:
    done = "Would delete" if found.dry_run else "Deleted"
    ids = first_fitting(found.ids, _ROOM // 2)
    missing = first_fitting(found.missing, _ROOM // 4)
    text = f"{done} {counted(found.count, 'entity', 'entities')} with {counted(found.edges_deleted, 'edge')}"
    lines = [f"{text}{': ' + ', '.join(map(quoted, ids)) if ids else ''}."]
    lines += [f"Not there, or not fitting: {', '.join(map(quoted, missing))}."] if missing else []
    lines += [_memories_left(found)] if found.memories_about else []
    values: dict[str, Any] = {"dry_run": found.dry_run, "count": found.count, "ids": ids}
    values |= {"missing": missing} if missing else {}
    if found.memories_about:
        values |= {"memories_about": found.memories_about, "memory_ids": found.memory_ids}
    more = "more entities fit than go at once: send it again" if found.more else ""
    values |= {"edges_deleted": found.edges_deleted, "sequence": found.sequence}
    return ToolReply(joined(lines), values, more, _FORGET_THEM if found.memories_about else "")


_FORGET_THEM = "forget with these ids withdraws the memories; so does POST /api/v1/forget"


def _memories_left(found: answers.DeleteNodeAnswer | answers.DeleteNodesAnswer) -> str:
    """Say which memories were about what was deleted."""
    count, ids = found.memories_about or 0, found.memory_ids or []
    what = "it" if isinstance(found, answers.DeleteNodeAnswer) else "what is deleted"
    told = counted(count, f"memory mentions {what} and stays", f"memories mention {what} and stay")
    return f"{told}: {', '.join(f'[{each}]' for each in ids)}{' and more' if count > len(ids) else ''}."


@present.register
def _merged(found: MergeAnswer, _given: schemas.MergeEntities, _store: str) -> ToolReply:
    named = f"{quoted(found.id)} into {quoted(found.into)}"
    values: dict[str, Any] = {"id": found.id, "into": found.into, "changed": found.changed, **_written(found.node)}
    if not found.changed:
        return ToolReply(f"Merged {named} already; nothing changed.", values)
    counts = {"edges_moved": found.edges_moved, "edges_dropped": found.edges_dropped + found.loops_dropped}
    values |= {name: number for name, number in counts.items() if number}
    values |= {name: each for name in ("taken_over", "not_taken") if (each := getattr(found, name))}
    text = f"Merged {named}: {counted(found.edges_moved, 'edge')} moved"
    text += f", taken over: {', '.join(found.taken_over)}" if found.taken_over else ""
    kept = f"the two differ in {', '.join(found.not_taken)}, where {quoted(found.into)} kept its own"
    hint = kept if found.not_taken else ""
    return ToolReply(f"{text}. Sequence {found.sequence}.", values | {"sequence": found.sequence}, hint=hint)


@present.register
def _unmerged(found: UnmergeAnswer, _given: schemas.MergeEntities, _store: str) -> ToolReply:
    if not found.changed:
        return ToolReply(f"{quoted(found.id)} is not merged; nothing changed.", {"id": found.id, "changed": False})
    text = (
        f"{quoted(found.id)} is out of {quoted(found.out_of or '')} again, with {counted(found.edges_restored, 'edge')}"
    )
    values = {"id": found.id, "out_of": found.out_of, "changed": True, **_written(found.node)}
    values |= {"edges_restored": found.edges_restored, "sequence": found.sequence}
    lost = [f"{_arrow(edge)}: {edge.reason}" for edge in found.not_restored[:_SKIPPED_SHOWN]]
    hint = f"not put back: {'; '.join(lost)}" if lost else ""
    return ToolReply(f"{text}. Sequence {found.sequence}.", values, hint=hint)


@present.register
def _delete_relation(found: answers.DeleteEdgeAnswer, given: schemas.DeleteRelation, _store: str) -> ToolReply:
    edge = _arrow(given)
    text = f"Deleted {edge}." if found.existed else f"There was no {edge}; nothing changed."
    return ToolReply(text, msgspec.to_builtins(found))


@present.register
def _put(found: PutNodeAnswer, _given: schemas.PutNode, _store: str) -> ToolReply:
    node = found.node
    named = f"{quoted(node.id)} ({node.type})"
    done = f"Created {named}" if found.created else f"{named} is now"
    hints: list[str] = []
    if found.replaced_version:
        hints.append(
            f"this replaced version {found.replaced_version}, which is not the one that it is based on; entity_history "
            "shows what others had written"
        )
    if found.cleared:
        hints.append(f"empty now, because they were left out: {', '.join(found.cleared)}")
    beside = {"replaced_version": found.replaced_version, "cleared": found.cleared}
    text = f"{done} at version {node.version}{_facts(node)}. Sequence {found.sequence}."
    values = {"ok": True, **_written(node), "created": found.created, "sequence": found.sequence}
    return ToolReply(text, values | {name: value for name, value in beside.items() if value}, hint="; ".join(hints))


def _written(node: answers.Node) -> dict[str, Any]:
    """The node of an answer to who has just sent it: what the store has added, and its beginning."""
    return {"node": {"version": node.version, **item(node, detail=False)}}


def conflict(error: ConflictManual) -> ToolReply:
    """What to say of a node that was kept beside other versions, in the form of `put_node`'s answers."""
    node: answers.Node = error.node
    others = ", ".join(map(str, node.conflicts or ()))
    hint = (
        f"to settle it read each other head (get_entity with id={quoted(node.id)} and version={others}), join what "
        f"they say with yours, and put_node the whole with id={quoted(node.id)} and based_on_version={node.version}. "
        "Until then all of these versions are kept"
    )
    values = {"ok": False, **_written(node), "created": False, "sequence": node.sequence}
    return ToolReply(f"conflict_manual: {error}.", values, hint=hint)


@present.register
def _put_subgraph(found: PutSubgraphAnswer, _given: schemas.PutSubgraph, store: str) -> ToolReply:
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
    there = [f"edges[{place}]" for place, edge in enumerate(found.edges) if edge.created is False]
    lines += [f"Not new, the result says what was replaced: {', '.join(there)}."] if there else []
    values = msgspec.to_builtins(found)
    if fits(values, _ROOM):
        return ToolReply(joined(lines), values)
    values["nodes"] = list(map(_short_node_result, found.nodes))
    values["edges"] = list(map(_short_edge_result, found.edges))
    more = "refs, ids of edges and long errors were left out for their size; the order is as sent"
    return ToolReply(joined(lines), values, more)


def _short_node_result(result: NodeResult) -> dict[str, Any]:
    short = replace(result, ref=None, error=result.error and shortened(result.error, _ERROR))
    return msgspec.to_builtins(short)


def _short_edge_result(result: EdgeResult) -> dict[str, Any]:
    if result.error:
        return {"error": shortened(result.error, _ERROR)}
    return {"created": False} if result.created is False else {}


@present.register
def _retire(found: RetireAnswer, given: msgspec.Struct, _store: str) -> ToolReply:
    named = schemas.end_of(given) if isinstance(given, schemas.Retire) else given
    what = _arrow(named) if isinstance(named, schemas.DeleteRelation) else quoted(getattr(named, "id", ""))
    end = moment(found.valid_to)
    done = f"{what} is true until {end}" if found.changed else f"{what} had ended at {end} already; nothing changed"
    values = msgspec.to_builtins(replace(found, valid_to=end))
    return ToolReply(f"{done}. Version {found.version}, sequence {found.sequence}.", values)


@present.register
def _traverse(found: answers.TraverseAnswer, given: schemas.Traverse, _store: str) -> ToolReply:
    when = _moment_asked(given)
    head = f"Traversal from {quoted(given.start_id)} (depth {given.depth}){when} — "
    head += f"{len(found.nodes)} nodes, {len(found.edges)} edges"
    if not found.nodes:
        hint = f"there is no node {quoted(given.start_id)}{when}; search_knowledge finds ids"
        values = {"nodes": [], "edges": [], "count": 0, "truncated": False}
        return ToolReply(f"{head}\n\n{_NODES}", values, hint=hint, names_store=False)
    edge_room = min(_ROOM * 2 // 5, len(encode(found.edges)))
    shown = lines_within(map(_walked_node_line, found.nodes), _ROOM - edge_room)
    reached = found.nodes[: len(shown)]
    nodes = (
        items(reached, _ROOM - edge_room, detail=True)
        if given.detail
        else first_fitting(map(outline, reached), _ROOM - edge_room)
    )
    ids = {(node.get("store"), node["id"]) for node in nodes}
    between = [edge for edge in found.edges if ids.issuperset(_ends(edge))]
    links = lines_within(map(_walked_edge_line, between), edge_room)
    edges = items(between[: len(links)], edge_room, detail=given.detail)
    left = (len(found.nodes) - len(nodes), len(found.edges) - len(edges))
    more = ""
    if any(left) or found.truncated:
        beyond = ", and more are within reach" if found.truncated else ""
        more = f"{left[0]:,} nodes and {left[1]:,} edges are not shown{beyond}: {_NEARER}"
    lines = [head, "", _NODES, *shown[: len(nodes)], *(["", _EDGES, *links[: len(edges)]] if edges else [])]
    hint, redirected = _redirect(found.redirected_from)
    values = {"nodes": nodes, "edges": edges, "count": len(nodes), "truncated": bool(more), **redirected}
    return ToolReply("\n".join(lines), values, more, hint, names_store=False)


def _ends(edge: answers.Edge) -> tuple[tuple[str | None, str], tuple[str | None, str]]:
    """The ends of an edge of a walk, each with its store, which is told where a walk goes through several."""
    store = edge.store or None
    return (store, edge.source), (edge.to_graph or store, edge.target)


@present.register
def _get_entity(found: answers.NodeAnswer, given: schemas.GetEntity, _store: str) -> ToolReply:
    whole = found.node
    end = given.content_offset + _CONTENT_OF_ONE
    node = replace(
        whole,
        content=whole.content[given.content_offset : end],
        attributes=brief_attributes(whole.attributes, _ATTRIBUTES_OF_ONE),
        tags=whole.tags and brief_tags(whole.tags, _TAGS_OF_ONE),
    )
    room = _EDGES_OF_ONE + (_CONTENT_OF_ONE - len(node.content)) // 2
    sides = {"outgoing": found.outgoing, "incoming": found.incoming}
    shown = {name: items(edges, room, detail=given.detail) for name, edges in sides.items()}
    cut = found.edges_truncated or any(len(shown[name]) < len(edges) for name, edges in sides.items())
    values: dict[str, Any] = {"node": _one(node, detail=given.detail), **shown, "edges_truncated": cut}
    more: list[str] = []
    if end < len(whole.content) or given.content_offset:
        values["content_length"] = len(whole.content)
    if end < len(whole.content):
        more.append(f"the content goes on to character {len(whole.content):,}: ask with content_offset={end}")
    if cut:
        offset = given.relations_offset + min(len(shown[name]) for name in shown if len(shown[name]) < len(sides[name]))
        more.append(f"not all edges are here: ask with relations_offset={offset}, or for one direction")
    if node.attributes is not whole.attributes:
        more.append("the attributes are too long: ask for parts with query_cypher and substring()")
    if node.tags is not whole.tags:
        more.append("the tags are too long for one answer")
    edges = {name: kept[: len(shown[name])] for name, kept in sides.items()}
    hint, redirected = _redirect(found.redirected_from)
    return ToolReply(_entity_text(node, edges, _moment_asked(given)), values | redirected, "; ".join(more), hint)


def _redirect(source: str | UnsetType) -> tuple[str, dict[str, Any]]:
    """What is said of an answer about another node than the one that was asked for."""
    if not source:
        return "", {}
    return f"{quoted(source)} was merged into this entity", {"redirected_from": source}


def _one(node: answers.Node, *, detail: bool) -> dict[str, Any]:
    if detail:
        return msgspec.to_builtins(node)
    stamps = {"version": node.version, "updated_at": _second(node.updated_at), "created_by": node.created_by}
    return {"content": "", **lean(node), **{name: value for name, value in stamps.items() if value}}


def _entity_text(node: answers.Node, edges: dict[str, list[answers.Edge]], when: str) -> str:
    author = f" by {quoted(node.created_by)}" if node.created_by else ""
    head = f"{quoted(node.id)} ({node.type}){when}, version {node.version}, changed {_second(node.updated_at)}{author}"
    facts = _facts(replace(node, attributes={})).strip()
    lines = [head, *([facts] if facts else []), *([node.content] if node.content else [])]
    lines += [f"Attributes: {as_json(node.attributes)}"] if node.attributes else []
    lines += ["Outgoing:", *map(_edge_line, edges["outgoing"])] if edges["outgoing"] else []
    lines += ["Incoming:", *map(_edge_line, edges["incoming"])] if edges["incoming"] else []
    kept = lines_within(lines, _ROOM + 500)
    return "\n".join(kept) + ("\n…" if len(kept) < len(lines) else "")


def fitting(nodes: Sequence[answers.ListedNode], *, detail: bool) -> int:
    """How many of a page's first nodes can be presented, as text and as values; one at least."""
    return max(len(_page(nodes, _listed_line, detail=detail, content=LONG)[0]), 1)


@present.register
def _list_entities(found: answers.ListedPage, given: schemas.ListEntities, store: str) -> ToolReply:
    nodes, lines = _page(found.nodes, _listed_line, detail=given.detail, content=LONG)
    more = f"the next page: cursor={quoted(found.next_cursor)}, without offset" if found.next_cursor else ""
    head = f"{counted(len(nodes), 'entity', 'entities')} of {quoted(store)}{_moment_asked(given)}"
    return ToolReply("\n".join([head, *lines]), {"nodes": nodes, "next_cursor": found.next_cursor}, more)


@present.register
def _some_entities(found: answers.NodesAnswer, given: schemas.ListEntities, store: str) -> ToolReply:
    nodes, lines = _page(found.nodes, _listed_line, detail=given.detail, content=TEASER if given.compact else LONG)
    more = (
        f"{len(found.nodes) - len(nodes):,} of them did not fit: ask for fewer" if len(nodes) < len(found.nodes) else ""
    )
    missing = first_fitting(found.missing, _ROOM // 4)
    hint = f"there is no {', '.join(map(quoted, missing))}" if missing else ""
    head = f"{counted(len(nodes), 'entity', 'entities')} of {quoted(store)}{_moment_asked(given)}"
    values = {"nodes": nodes} | ({"missing": missing} if missing else {})
    return ToolReply("\n".join([head, *lines]), values, more, hint)


@present.register
def _counted(found: answers.CountAnswer, given: schemas.ListEntities, store: str) -> ToolReply:
    least = "" if found.exact else "at least "
    text = f"{least}{counted(found.count, 'entity', 'entities')} of {quoted(store)}{_moment_asked(given)}"
    return ToolReply(text, {"count": found.count} | ({} if found.exact else {"exact": False}))


@present.register
def _list_relations(found: EdgeList, given: schemas.ListRelations, _store: str) -> ToolReply:
    edges, lines = _page(found.edges, _edge_line, detail=given.detail)
    next_offset = found.next_offset if len(edges) == len(found.edges) else given.offset + len(edges)
    more = "" if next_offset is None else f"the next page: offset={next_offset}"
    head = f"{counted(len(edges), f'{given.direction} relation')} of {quoted(given.id)}{_moment_asked(given)}"
    return ToolReply("\n".join([head, *lines]), {"edges": edges, "next_offset": next_offset}, more)


@present.register
def _history(found: answers.NodeHistory, given: msgspec.Struct, _store: str) -> ToolReply:
    detail = isinstance(given, schemas.EntityHistory) and given.detail
    shown, lines = _page(found.states, _state_lines, detail=detail)
    states = shown if detail else list(map(_state_values, found.states[: len(shown)]))
    next_before = found.next_before if len(states) == len(found.states) else found.states[len(states) - 1].from_sequence
    more = "" if next_before is None else f"older states: before={next_before}"
    head = f"{counted(len(states), 'state')} of {quoted(found.id)}, newest first"
    return ToolReply("\n".join([head, *lines]), {"id": found.id, "states": states, "next_before": next_before}, more)


def _state_values(state: answers.NodeState) -> dict[str, Any]:
    """A state by its version and what it changed; the first one, which changed nothing, by its content."""
    node = state.node
    named = {"version": node.version, "created_by": node.created_by}
    if not state.diff:
        named |= {"type": node.type, "content": shortened(node.content, EXCERPT)}
    values = item(state, detail=False)
    former = {} if node.is_current is UNSET else {"is_current": node.is_current}
    return {**values, "node": {name: value for name, value in named.items() if value} | former}


def _state_lines(state: answers.NodeState) -> str:
    until = "now" if state.recorded_to is None else moment(state.recorded_to)
    end = ", then deleted" if state.deleted else ""
    author = f" by {quoted(state.node.created_by)}" if state.node.created_by else ""
    author += "".join(f", also by {quoted(each.created_by)}" for each in state.also_by or ())
    head = f"version {state.node.version}{author}: {moment(state.recorded_from)} to {until}{end}"
    return "\n".join([head, *(f"  {each.path}: {_value(each.before)} -> {_value(each.after)}" for each in state.diff)])


def _value(value: Any) -> str:
    return shortened(as_json(value), _VALUE_LINE)


@present.register
def _search(found: answers.SearchAnswer, given: schemas.Search, _store: str) -> ToolReply:
    reply = _hits(found.hits, given.query or "", given.offset, detail=given.detail)
    if not reply.more and len(found.hits) == given.limit:
        reply = reply._replace(more=f"the next hits: offset={given.offset + len(found.hits)}")
    return _degraded(reply, degraded=found.degraded, meaning=given.mode != "keyword")


@present.register
def _search_batch(found: answers.BatchSearchAnswer, given: msgspec.Struct, _store: str) -> ToolReply:
    asked = [each if isinstance(each, str) else each.query for each in _queries(given)]
    detail = getattr(given, "detail", False)
    reply = _hits(found.hits, " / ".join(asked), 0, detail=detail)
    if detail:
        counts = {name: getattr(found, name) for name in ("query_count", "unique_hits", "per_query_hits")}
        reply = reply._replace(values=reply.values | counts)
    if not reply.more and found.unique_hits > len(found.hits):
        more = f"{found.unique_hits - len(found.hits):,} hits more: a higher limit, or narrower queries"
        reply = reply._replace(more=more)
    return _degraded(reply, degraded=found.degraded, meaning=True)


def _queries(given: msgspec.Struct) -> Sequence[Any]:
    return given.queries or () if isinstance(given, schemas.Search | schemas.SearchBatch) else ()


def _hits(hits: Sequence[answers.SearchHit | answers.BatchHit], query: str, offset: int, *, detail: bool) -> ToolReply:
    head = f"{counted(len(hits), 'hit')} for {quoted(shortened(query, EXCERPT))}"
    numbers = iter(range(offset + 1, offset + len(hits) + 1))
    shown, lines = _page(hits, lambda hit: _hit_line(next(numbers), hit), detail=detail, content=EXCERPT)
    if len(shown) == len(hits):
        return ToolReply("\n".join([head, *lines]), {"hits": shown})
    more = f"{len(hits) - len(shown):,} hits are not shown here: offset={offset + len(shown)} or a lower limit"
    return ToolReply("\n".join([head, *lines]), {"hits": shown}, more)


def _degraded(reply: ToolReply, *, degraded: bool, meaning: bool) -> ToolReply:
    if not (degraded and meaning):
        return reply
    hint = "this server has no model for meaning: ask with the words that were used"
    return reply._replace(hint=hint, values={**reply.values, "degraded": True})


def _hit_line(number: int, hit: answers.SearchHit | answers.BatchHit) -> str:
    node = hit.node
    content = f"\n   {shortened(node.content, EXCERPT)}" if node.content else ""
    facts = _facts(node)
    return f"{number}. {quoted(node.id)} ({node.type}), score {hit.score:.2f}{facts}{content}"


@present.register
def _context(found: answers.ContextAnswer, given: schemas.ContextArguments, _store: str) -> ToolReply:
    if not found.ids:
        text = f"Nothing was found for {quoted(shortened(given.query, EXCERPT))}."
        return ToolReply(text, {"text": "", "tokens": 0, "ids": [], "truncated": False})
    more = "there is more than the budget allowed: raise budget, or ask more narrowly" if found.truncated else ""
    values = {"text": found.text, "tokens": found.tokens, "ids": found.ids, "truncated": found.truncated}
    values |= {"stores": found.stores} if found.stores else {}
    return _degraded(ToolReply(found.text, values, more), degraded=found.degraded, meaning=True)


@present.register
def _query(found: answers.CypherAnswer, given: schemas.QueryCypher, _store: str) -> ToolReply:
    rows = first_fitting(found.rows, _ROOM)
    lines = lines_within(map(as_json, rows), _ROOM)
    rows = rows[: len(lines)]
    head = f"{counted(len(found.rows), 'row')} of {as_json(found.columns)}"
    truncated = found.truncated or len(rows) < len(found.rows)
    values = {"columns": found.columns, "rows": rows, "row_count": len(rows), "truncated": truncated}
    if given.detail:
        values |= {"types": found.types, "took_ms": found.took_ms}
    return ToolReply("\n".join([head, *lines]), values, _more_rows(found, len(rows)))


def _more_rows(found: answers.CypherAnswer, shown: int) -> str:
    if shown < len(found.rows):
        return f"{len(found.rows) - shown:,} rows more: fewer or shorter columns (substring), or SKIP and LIMIT"
    return "there are more rows: raise max_rows, or use SKIP and LIMIT" if found.truncated else ""


@present.register
def _describe_schema(found: answers.SchemaDescription, _given: schemas.DescribeSchema, _store: str) -> ToolReply:
    lists = {name: first_fitting(getattr(found, name), _ROOM // 3) for name in ("kinds", "tag_prefixes", "tags")}
    cut = any(len(kept) < len(getattr(found, name)) for name, kept in lists.items())
    more = "less frequent ones were left out for their size; list_tags takes a prefix" if cut else ""
    values = replace(found, **lists)
    return ToolReply(joined(_schema_lines(values)), msgspec.to_builtins(values), more)


def _schema_lines(values: answers.SchemaDescription) -> list[str]:
    lines = [f'Schema of "{values.store}": {counted(values.node_count, "node")}', "Types:"]
    for kind in values.kinds:
        lines.append(f"  {kind.kind}: {kind.count:,}")
        lines += [f"    {quoted(example)}" for example in kind.examples]
    lines += ["Prefixes of tags:"]
    lines += [f"  {each.prefix}: {each.count:,} ({', '.join(each.values)})" for each in values.tag_prefixes]
    return [*lines, "Tags:", *map(_tag_line, values.tags)]


@present.register
def _list_tags(found: answers.TagList, given: schemas.ListTags, _store: str) -> ToolReply:
    tags = first_fitting(found.tags, _ROOM)
    lines = lines_within(map(_tag_line, tags), _ROOM)
    more = ""
    if len(lines) < len(found.tags):
        more = "less frequent ones were left out for their size; ask with a longer prefix"
    elif len(tags) == given.limit:
        more = "there may be less frequent ones; ask with a longer prefix"
    which = f" starting with {quoted(given.prefix)}" if given.prefix else ""
    head = f"{counted(len(lines), 'tag')}{which}"
    return ToolReply("\n".join([head, *lines]), {"tags": msgspec.to_builtins(tags[: len(lines)])}, more)


def _tag_line(each: kinds.TagFreq) -> str:
    return f"  {quoted(each.tag)}: {each.count:,}"


def joined(lines: Iterable[str]) -> str:
    """The first of some lines, as many as an answer has room for."""
    return "\n".join(lines_within(lines, _ROOM))


def _page(
    things: Sequence[T], line: Callable[[T], str], *, detail: bool, content: int = TEASER
) -> tuple[list[dict[str, Any]], list[str]]:
    """The first things that fit, as values and as lines of text."""
    shown = items(things, _ROOM, detail=detail, content=content)
    lines = lines_within(map(line, things[: len(shown)]), _ROOM)
    return shown[: len(lines)], lines


def quoted(text: str) -> str:
    """Text in double quotes on one line, as JSON writes it."""
    return as_json(text)


def counted(number: int, noun: str, nouns: str = "") -> str:
    """A number with its noun: 1 node, 2 nodes."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {nouns or noun + 's'}"


def moment(text: str) -> str:
    """A time without a fraction that is none."""
    return text.replace(".000000Z", "Z")


def _second(text: str) -> str:
    """A time to the second."""
    return f"{text[:19]}Z"


def _moment_asked(given: schemas.Traverse | schemas.GetEntity | schemas.ListEntities | schemas.ListRelations) -> str:
    """The moment that a call asks for, to be put behind what was asked; empty for the present."""
    as_of = f" as of {given.as_of}" if given.as_of else ""
    if not given.valid_at:
        return as_of
    return as_of + (", true or not" if given.valid_at == "any" else f", true at {given.valid_at}")


def _arrow(edge: answers.Edge | answers.Skipped | NotRestored | schemas.DeleteRelation) -> str:
    source = f"{quoted(edge.source)}{_place(edge.store) if isinstance(edge, answers.Edge) else ''}"
    into = _place(edge.to_graph) if isinstance(edge, answers.Edge | schemas.DeleteRelation) else ""
    return f"{source} -[{edge.relation_type}]-> {quoted(edge.target)}{into}"


def _place(store: str | UnsetType) -> str:
    """The store of a thing, where it is told."""
    return f" of store {quoted(store)}" if store else ""


def _walked_node_line(node: answers.ReachedNode) -> str:
    """Format a node of a walk as the Memory Engine does: a star marks the start, the content is shortened."""
    named = f"  [{' ' if node.depth else '*'}] id={quoted(node.id)}"
    store = f" store={quoted(node.store)}" if node.store else ""
    if is_missing(node):
        return f"{named}{store} is not there"
    whole = replace(node, summary=UNSET, tags=UNSET, attributes={})
    content = f" content={quoted(shortened(node.content, TEASER, '...'))}" if node.content else ""
    return f"{named} type={quoted(node.type)}{content}{store}{_facts(whole)}"


def _walked_edge_line(edge: answers.Edge) -> str:
    """Format an edge of a walk as the Memory Engine does; its weight is always there."""
    facts = "".join(f" {fact}" for fact in _edge_facts(edge) if not fact.startswith("weight="))
    return f"  {_arrow(edge)} (weight={_weight(edge.weight)}){facts}"


def _weight(weight: float) -> str:
    """A weight with two decimals, or as many significant digits as it takes not to show another one."""
    text = f"{weight:.2f}"
    return text if float(text) == weight else f"{weight:.4g}"


def _listed_line(node: answers.Node | answers.ListedNode) -> str:
    return f"  - {quoted(node.id)} ({node.type}){_facts(node)}{_content(node, LONG)}"


def _content(node: answers.Node | answers.ListedNode, most: int) -> str:
    return f" {quoted(shortened(node.content, most))}" if node.content else ""


def _edge_line(edge: answers.Edge) -> str:
    """An edge in one line."""
    return f"  {_arrow(edge)}{''.join(f' {fact}' for fact in _edge_facts(edge))}"


def _edge_facts(edge: answers.Edge) -> Iterator[str]:
    if edge.weight != 1:
        yield f"weight={edge.weight:.4g}"
    if isinstance(edge.ordinal, int):
        yield f"ordinal={edge.ordinal}"
    yield from _validity(edge)
    if attributes := own_attributes(edge):
        yield shortened(as_json(attributes), _ATTRIBUTES_LINE)


def _facts(node: answers.Node | answers.ListedNode) -> str:
    """What a node has beyond id, type and content, as `` name=value …``; empty when it has nothing."""
    return "".join(f" {fact}" for fact in _each_fact(node))


def _each_fact(node: answers.Node | answers.ListedNode) -> Iterator[str]:
    if node.summary:
        yield f"summary={quoted(shortened(node.summary, TEASER))}"
    if node.tags:
        yield f"tags={shortened(', '.join(map(quoted, node.tags)), _TAGS_LINE)}"
    if node.attributes:
        yield shortened(as_json(node.attributes), _ATTRIBUTES_LINE)
    yield from _validity(node)
    if node.stale:
        yield "stale"
    if node.conflicts:
        heads = ",".join(map(str, node.conflicts[:_HEADS_LINE]))
        yield f"version={node.version} conflicts_with_versions={heads}" + (
            ",…" if len(node.conflicts) > _HEADS_LINE else ""
        )
    if node.is_current:
        yield f"version={node.version} in conflict with the present one"
    if node.superseded_by:
        yield f"superseded_by={node.superseded_by}"


def _validity(thing: answers.Node | answers.ListedNode | answers.Edge) -> Iterator[str]:
    if thing.valid_from:
        yield f"valid_from={moment(thing.valid_from)}"
    if thing.valid_to:
        yield f"valid_to={moment(thing.valid_to)}"
