"""Memory tools: retain, recall, reflect, forget and get_memory.

Arguments are those of the REST requests, described for agents. Defaults are the same, except for recall: ten memories
of at most 2,000 tokens, with related memories.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from kgserve.errors import FieldError, InvalidInput
from kgserve.graph.request_bodies import SearchMode
from kgserve.graph.store_handle import StoreHandle
from kgserve.memory import forget, memory_details, organize_memories, retain, retain_forget_recall_models
from kgserve.memory.entity_models import RelationInput
from kgserve.memory.hierarchy_models import MemoryDetailsRequest
from kgserve.memory.memory_models import (
    EXPIRES_IN_SCHEMA,
    LabelText,
    Memory,
    MemoryEntityInput,
    MetadataObject,
    NodeIdText,
    RecallAnswer,
    RecalledMemory,
    RecallRequest,
    ShortText,
    StillReferencedDeletedEntity,
    TimestampText,
)
from kgserve.memory.multi_store_recall import recall_best_memories
from kgserve.memory.reflect_models import (
    OrganizeMemoriesAnswer,
    OrganizeMemoriesRequest,
    format_memory_line,
    format_reflect_proposal_line,
)
from kgserve.memory.relationships import MemoryDetails
from kgserve.platform.settings import DedupMode
from kgserve.server.mcp.forget_entity_reply import build_forget_entity_reply, format_unrestored_hint
from kgserve.server.mcp.shared_tool_arguments import (
    UNLISTED_FIELD,
    StoreToolArguments,
    add_request_fields_to_arguments,
    convert_arguments_to_request,
)
from kgserve.server.mcp.tool_definition import McpTool
from kgserve.server.mcp.tool_replies import ToolReply, build_tool_reply, format_count, trim_zero_time_fraction
from kgserve.server.mcp.tool_structured_content import (
    MAX_DETAIL_CHARS,
    MAX_EXCERPT_CHARS,
    MAX_RESULT_CHARS,
    MAX_WHOLE_CONTENT_CHARS,
    convert_to_builtins_without_defaults,
    omit_oversized_attributes,
    take_items_within_json_size,
    take_lines_within_length,
    truncate_text,
)

_MAX_LISTED_VERSIONS = 20

_Labels = Annotated[list[LabelText], Meta(max_length=100)]
_Layer = Annotated[int, Meta(ge=0, le=3, description="0 domain, 1 concept, 2 fact, 3 episode")]
_From = Annotated[TimestampText, Meta(description="True from then on, RFC 3339; default: now")]
_Until = Annotated[TimestampText, Meta(description="True until then")]
_Moment = Annotated[TimestampText, Meta(description="RFC 3339")]


class ConversationMessageArguments(retain_forget_recall_models.ConversationMessage, kw_only=True):
    """One message of a conversation to retain."""

    role: Annotated[LabelText, Meta(description="Speaker")] = "user"
    content: str
    at: Annotated[TimestampText, Meta(description="RFC 3339")] | None = None


class EntityNameReference(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Reference to an entity by its name."""

    name: LabelText
    entity_type: Annotated[LabelText, Meta(description="person, project, technology …")] | UnsetType = UNSET


class RelationByEntityNames(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Relation between two entities, each given by name."""

    source: LabelText
    target: LabelText
    relation_type: Annotated[LabelText, Meta(description="In active voice: works_on")]
    strength: Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET


@add_request_fields_to_arguments(retain_forget_recall_models.RetainTextRequest, "first")
class RetainMemoryArguments(StoreToolArguments, kw_only=True):
    """Memory to store."""

    content: (
        Annotated[
            Annotated[str, Meta(min_length=1)]
            | Annotated[
                list[retain_forget_recall_models.ConversationMessage],
                Meta(min_length=1, max_length=retain_forget_recall_models.MAX_CONVERSATION_MESSAGES),
            ],
            Meta(description="One thing, as a sentence"),
        ]
        | UnsetType
    ) = UNSET
    messages: (
        Annotated[
            list[ConversationMessageArguments],
            Meta(
                min_length=1,
                max_length=retain_forget_recall_models.MAX_CONVERSATION_MESSAGES,
                description="Or messages of a conversation",
            ),
        ]
        | UnsetType
    ) = UNSET
    entity_id: Annotated[NodeIdText, Meta(description="Memory whose current state this is")] | UnsetType = UNSET
    supersedes: (
        Annotated[NodeIdText, Meta(description="Memory that is no longer true; it stays as history")] | UnsetType
    ) = UNSET
    memory_type: Annotated[LabelText, Meta(description="fact, decision, preference, procedure …")] | UnsetType = UNSET
    layer: _Layer | UnsetType = UNSET
    parent: Annotated[ShortText, Meta(description="Parent memory")] | UnsetType = UNSET
    tags: _Labels | UnsetType = UNSET
    entities: (
        Annotated[
            list[LabelText | EntityNameReference],
            Meta(max_length=100, description="Names of whom and what it is about"),
        ]
        | UnsetType
    ) = UNSET
    relations: (
        Annotated[list[RelationByEntityNames], Meta(max_length=100, description="Between entities")] | UnsetType
    ) = UNSET
    update: Annotated[Literal["auto", "correct", "never"], Meta(description="correct: overwrite")] = "auto"
    metadata: Annotated[MetadataObject, Meta(description="Any object")] | UnsetType = UNSET
    expires_in: Annotated[str, EXPIRES_IN_SCHEMA, Meta(description="Valid for: 12h, 7d, 2w")] | UnsetType = UNSET
    dedup: Annotated[DedupMode | UnsetType, UNLISTED_FIELD] = UNSET
    extract: Annotated[bool | None, UNLISTED_FIELD] = None
    importance: Annotated[float, Meta(ge=0, le=1, description="1: never fades")] | UnsetType = UNSET
    source: Annotated[ShortText, Meta(description="Origin, or name of the conversation")] | UnsetType = UNSET
    context: Annotated[str, Meta(description="Surrounding text")] | UnsetType = UNSET
    valid_from: _From | UnsetType = UNSET
    valid_to: _Until | UnsetType = UNSET
    created_at: Annotated[_Moment | UnsetType, UNLISTED_FIELD] = UNSET


@add_request_fields_to_arguments(
    RecallRequest,
    *("offset", "alpha", "depth", "metadata", "explain", "after_date", "before_date"),
)
class RecallArguments(StoreToolArguments, kw_only=True):
    """Query and filters of a recall."""

    query: Annotated[str, Meta(min_length=1, max_length=10_000, description="In plain words")]
    limit: Annotated[int, Meta(ge=1, le=100, description="Maximum memories")] = (
        retain_forget_recall_models.DEFAULT_AGENT_RECALL_LIMIT
    )
    budget: Annotated[int, Meta(ge=1, le=25_000, description="Maximum tokens")] = (
        retain_forget_recall_models.DEFAULT_AGENT_RECALL_BUDGET_TOKENS
    )
    mode: Annotated[SearchMode, Meta(description="By words, meaning, both, or along relations")] = "hybrid"
    types: Annotated[_Labels, Meta(description="Any of these")] | UnsetType = UNSET
    tags: Annotated[_Labels, Meta(description="All of these")] | UnsetType = UNSET
    layer: _Layer | UnsetType = UNSET
    entity: Annotated[LabelText, Meta(description="Only about this entity, by name")] | UnsetType = UNSET
    source: Annotated[LabelText, Meta(description="Only from this source")] | UnsetType = UNSET
    after: _Moment | UnsetType = UNSET
    before: _Moment | UnsetType = UNSET
    min_confidence: Annotated[float, Meta(ge=0, le=1, description="Exclude less certain ones")] | UnsetType = UNSET
    min_similarity: Annotated[float | UnsetType, UNLISTED_FIELD] = UNSET
    expand: Annotated[bool, Meta(description="Include memories related to the best")] = True
    touch: Annotated[bool, Meta(description="Count as used, which slows fading")] = True


@add_request_fields_to_arguments(OrganizeMemoriesRequest)
class ReflectArguments(StoreToolArguments, kw_only=True):
    """Scope of a reflection, or decisions on its proposals."""

    answer: Annotated[bool, UNLISTED_FIELD] = False


@add_request_fields_to_arguments(retain_forget_recall_models.ForgetRequest)
class ForgetMemoriesArguments(StoreToolArguments, kw_only=True):
    """Memories to forget."""

    entity: Annotated[NodeIdText, Meta(description="A person or thing, with all about it")] | UnsetType = UNSET
    entity_id: Annotated[NodeIdText, Meta(description="One memory")] | UnsetType = UNSET
    ids: Annotated[list[NodeIdText], Meta(min_length=1, max_length=1_000, description="Or several")] | UnsetType = UNSET
    query: (
        Annotated[str, Meta(min_length=1, max_length=10_000, description="Forgets nothing: lists matches")] | UnsetType
    ) = UNSET
    hard: Annotated[bool, Meta(description="Delete, which cannot be undone")] = False
    erase: Annotated[bool, Meta(description="Leave no trace; admin keys only")] = False
    undo: Annotated[bool, Meta(description="Bring back")] = False


class GetMemoryArguments(StoreToolArguments, kw_only=True):
    """Memory to read."""

    id: NodeIdText
    touch: Annotated[bool, Meta(description="Count as used")] = True


class RecallToolResult(RecallAnswer, kw_only=True):
    """Result of the recall tool; a type of its own, to select its reply."""


def _retain(graph: StoreHandle, given: RetainMemoryArguments) -> Any:
    content = given.content or given.messages
    if not content or (given.content and given.messages):
        raise InvalidInput.at("content", "send either one thing to remember as content, or a conversation as messages")
    asked = convert_arguments_to_request(
        retain_forget_recall_models.RetainTextRequest, msgspec.structs.replace(given, content=content)
    )
    asked.entities = [
        MemoryEntityInput(name=each) if isinstance(each, str) else MemoryEntityInput(**_set_fields(each))
        for each in given.entities or ()
    ]
    asked.relations = [RelationInput(**_set_fields(each)) for each in given.relations or ()]
    return retain.retain_text_or_conversation(graph, asked)


def _recall(graph: StoreHandle, given: RecallArguments) -> RecallToolResult:
    asked = convert_arguments_to_request(RecallRequest, given)
    asked.after_date, asked.before_date = given.after or None, given.before or None
    with rename_error_fields_to_tool_arguments({"after_date": "after", "before_date": "before"}):
        return RecallToolResult(**msgspec.structs.asdict(recall_best_memories(graph, asked)))


@contextmanager
def rename_error_fields_to_tool_arguments(names: Mapping[str, str]) -> Generator[None]:
    """Rename request fields to tool arguments in InvalidInput errors; ``names`` maps fields to arguments."""
    try:
        yield
    except InvalidInput as error:
        for field, argument in names.items():
            if error.message.startswith(f"{field}:"):
                error.reword(argument + error.message.removeprefix(field))
        error.errors = tuple(FieldError(names.get(each.path, each.path), each.message) for each in error.errors)
        raise


def _get_memory(graph: StoreHandle, given: GetMemoryArguments) -> MemoryDetails:
    return memory_details.get_memory_details(graph, MemoryDetailsRequest(memory_id=given.id, touch=given.touch))


def _set_fields(given: msgspec.Struct) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(given).items() if value is not UNSET}


@build_tool_reply.register
def _retained_reply(
    found: retain_forget_recall_models.RetainAnswer, _given: RetainMemoryArguments, _store: str
) -> ToolReply:
    lines = [
        *_iter_operation_lines(found.operations),
        *(f"similar, differs in {each.differs}: [{each.id}] {each.content}" for each in found.similar),
    ]
    values: dict[str, Any] = {
        "operations": take_items_within_json_size(
            map(convert_to_builtins_without_defaults, found.operations), MAX_RESULT_CHARS // 2
        ),
        "similar": take_items_within_json_size(
            map(convert_to_builtins_without_defaults, found.similar), MAX_RESULT_CHARS // 4
        ),
        "sequence": found.sequence,
    }
    hint = ""
    if found.similar:
        hint = "if a similar memory is no longer true, retain with supersedes set to its id"
    text, more = truncate_reply_lines(lines)
    return ToolReply(text or "There was nothing to remember.", values, more, hint)


def truncate_reply_lines(lines: Sequence[str]) -> tuple[str, str]:
    """Return a text of the first lines that fit into a reply, and the ``more`` text about the others."""
    kept = take_lines_within_length(lines, MAX_RESULT_CHARS)
    return "\n".join(kept), f"{len(lines) - len(kept)} lines do not fit" if len(kept) < len(lines) else ""


_DONE = {"create": "created", "update": "updated", "merge": "merged into", "noop": "unchanged"}


def _iter_operation_lines(operations: Sequence[retain_forget_recall_models.RetainMemoryOutcome]) -> Iterator[str]:
    """Yield one line for each memory, with what it is about; the caller knows its content."""
    stated = {each.memory_id for each in operations if each.type != "link"}
    links: dict[str, list[str]] = {}
    for each in operations:
        if each.type == "link" and each.memory_id in stated:
            links.setdefault(each.memory_id, []).append(each.content)
    for each in operations:
        if each.type != "link":
            names = links.pop(each.memory_id, [])
            about = f", about {truncate_text(', '.join(names), MAX_EXCERPT_CHARS)}" if names else ""
            # The memory's own id is not repeated: '@9' is its version.
            reason = trim_zero_time_fraction(each.reason.replace(f"{each.memory_id}@", "@"))
            reason = "" if each.type == "create" else f" ({reason})"
            yield f"{_DONE[each.type]} {each.memory_id}{about}{reason}"
        elif each.memory_id not in stated:
            yield f"linked {truncate_text(each.content, MAX_EXCERPT_CHARS)} ({each.reason})"


@build_tool_reply.register
def _recall_reply(found: RecallToolResult, given: RecallArguments, _store: str) -> ToolReply:
    now = time.time()
    hints = describe_withheld_memories(found)
    if "below_confidence" in found.withheld:
        hints.append("a lower min_confidence includes faded memories")
    if "over_budget" in found.withheld:
        hints.append("a larger budget shows more")
    hints += describe_degraded_search(found, given.mode)
    entries = [(build_compact_memory_fields(each), _recall_line(each, now)) for each in found.hits]
    return build_recall_reply(found, given.query, entries, hints)


def _recall_line(hit: RecalledMemory, now: float) -> str:
    line = format_memory_line(msgspec.structs.replace(hit, via=None), now)
    return f"{line} — related" if hit.via else line


def build_recall_reply(
    found: RecallAnswer, query: str, entries: Iterable[tuple[dict[str, Any], str]], hints: Iterable[str]
) -> ToolReply:
    """Return the reply of a recall; ``entries`` has each memory as values and as a line of text."""
    each_values, each_line = [*zip(*entries, strict=True)] or ((), ())
    shown, lines = (
        take_items_within_json_size(each_values, MAX_RESULT_CHARS),
        take_lines_within_length(each_line, MAX_RESULT_CHARS),
    )
    count = min(len(shown), len(lines))
    head = [] if found.hits else [f"0 memories for {truncate_text(query, MAX_EXCERPT_CHARS)!r}"]
    hints = [*([found.notice] if found.notice else []), *hints]
    hints = hints if found.hits else ["no memory is relevant to this query", *hints]
    values: dict[str, Any] = {"memories": shown[:count]} | ({"withheld": found.withheld} if found.withheld else {})
    if found.deleted_entity:
        hints = [build_deleted_entity_hint(found.deleted_entity), *hints]
        values["deleted_entity"] = msgspec.to_builtins(found.deleted_entity)
    values |= {"notice": found.notice} if found.notice else {}
    beyond = len(found.hits) - count
    more = f"{beyond} do not fit: use a lower limit, or a narrower query" if beyond else ""
    return ToolReply("\n".join([*head, *lines[:count]]), values, more, "; ".join(hints))


def build_deleted_entity_hint(entity: StillReferencedDeletedEntity) -> str:
    """Return the hint that the requested entity was deleted."""
    return f"the entity {entity.name!r} was deleted at {entity.deleted_at}; these memories were about it"


def describe_withheld_memories(found: RecallAnswer) -> list[str]:
    """Return the hint about omitted memories, if any."""
    omitted = ", ".join(f"{number} {reason.replace('_', ' ')}" for reason, number in found.withheld.items())
    return [f"omitted: {omitted}"] if omitted else []


def describe_degraded_search(found: RecallAnswer, mode: SearchMode) -> list[str]:
    """Return the hint that the search was degraded to words, unless the mode is keyword."""
    is_degraded = found.degraded and mode != "keyword"
    return ["this server has no embedding model: search with the exact words"] if is_degraded else []


def _answer_reply(answer: str, used: list[str]) -> ToolReply:
    lines = [answer or "No memory answers this.", *(f"based on [{each}]" for each in used)]
    values = {"dry_run": False, "proposals": [], "answer": answer, "used": used}
    return ToolReply("\n".join(take_lines_within_length(lines, MAX_RESULT_CHARS)), values)


@build_tool_reply.register
def _reflect_reply(found: OrganizeMemoriesAnswer, _given: ReflectArguments, _store: str) -> ToolReply:
    if isinstance(found.answer, str):
        return _answer_reply(found.answer, found.used or [])
    would = "would be " if found.dry_run else ""
    head = (
        f"{found.looked_at:,} examined: {found.merged:,} {would}merged, {found.linked_count:,} {would}linked below a "
        f"concept, {format_count(found.proposals_count, 'proposal')}."
    )
    lines = [f"Undone: {found.undone:,}."] if found.undone else []
    lines += [format_reflect_proposal_line(each) for each in found.proposals]
    lines += [f"[{each.id}] below [{each.parent_id}] ({each.score:.2f})" for each in found.linked]
    lines += [f"skipped, because it was changed since: [{each}]" for each in found.skipped]
    lines += [f"faded: [{each}]" for each in found.stale]
    hints = ["accept=[numbers] applies proposals, refuse=[numbers] dismisses them permanently"]
    hints = hints if found.run and any(each.state == "open" for each in found.proposals) else []
    hints += [f"undo=true reverts the run {found.run}"] if found.run and not found.undone else []
    hints += [] if found.near_checked else ["no vectors were available for comparison"]
    values = {
        "dry_run": found.dry_run,
        "run": found.run,
        "looked_at": found.looked_at,
        "merged": found.merged,
        "linked_count": found.linked_count,
        "linked": take_items_within_json_size(map(msgspec.to_builtins, found.linked), MAX_RESULT_CHARS // 4),
        "proposals": take_items_within_json_size(
            map(convert_to_builtins_without_defaults, found.proposals), MAX_RESULT_CHARS // 3
        ),
        "proposals_count": found.proposals_count,
        "stale": found.stale,
        "undone": found.undone,
        "skipped": found.skipped,
        "sequence": found.sequence,
    }
    text, more = truncate_reply_lines(lines)
    nonempty = {name: value for name, value in values.items() if value not in (None, [], 0, False)}
    text = "\n".join(filter(None, (head, text)))
    return ToolReply(text, {"dry_run": found.dry_run, "proposals": [], **nonempty}, more, "; ".join(hints))


@build_tool_reply.register
def _forget_reply(
    found: retain_forget_recall_models.ForgetAnswer, given: ForgetMemoriesArguments, _store: str
) -> ToolReply:
    if given.entity:
        return build_forget_entity_reply(found, given.entity, erases=given.erase)
    if given.query or found.matches:
        lines = take_lines_within_length(map(_match_line, found.matches), MAX_RESULT_CHARS)
        head = f"{format_count(len(found.matches), 'memory matches', 'memories match')}; nothing is forgotten yet:"
        shown = take_items_within_json_size(map(convert_to_builtins_without_defaults, found.matches), MAX_RESULT_CHARS)
        hint = "forget with ids withdraws them" if found.matches else ""
        return ToolReply("\n".join([head, *lines]), {"matches": shown}, hint=hint)
    would = "would be " if found.dry_run else ""
    if given.undo:
        text = f"{format_count(found.memories_restored, 'memory', 'memories')} {would}restored"
    else:
        done = "erased" if given.erase else "deleted" if given.hard else "withdrawn"
        text = f"{format_count(found.memories_removed, 'memory', 'memories')} {would}{done}"
    names = ("memories_removed", "relations_removed", "memories_restored", "relations_restored", "ids", "sequence")
    values = {name: value for name in names if (value := getattr(found, name)) or name == "memories_removed"}
    undone = given.hard or given.erase or given.undo or found.dry_run or not found.memories_removed
    hint = format_unrestored_hint(found) if undone else "undo=true restores them"
    if found.remains:
        values["remains"] = take_items_within_json_size(
            map(convert_to_builtins_without_defaults, found.remains), MAX_RESULT_CHARS // 4
        )
        hint = "may still contain it: " + ", ".join(each.name for each in found.remains)
    named = {*(given.ids or ()), given.entity_id}
    unnamed = [each for each in found.ids if each.partition("@")[0] not in named]
    ids = f": {', '.join(f'[{each}]' for each in unnamed)}" if unnamed else ""
    return ToolReply(f"{text}{ids}.", values | ({"dry_run": True} if found.dry_run else {}), hint=hint)


def _match_line(match: retain_forget_recall_models.ForgetQueryMatch) -> str:
    return f"[{match.id}] ({match.memory_type}) {match.content}"


@build_tool_reply.register
def _get_memory_reply(found: MemoryDetails, _given: GetMemoryArguments, _store: str) -> ToolReply:
    now = time.time()
    content = truncate_text(found.content, MAX_WHOLE_CONTENT_CHARS)
    lines = [format_memory_line(found, now, MAX_WHOLE_CONTENT_CHARS)]
    lines += [f"below {format_memory_line(found.parent, now)}"] if found.parent is not None else []
    lines += [f"{format_count(found.children, 'memory', 'memories')} below it"] if found.children else []
    versions = found.versions[-_MAX_LISTED_VERSIONS:]
    lines += [
        f"before [{each.id}]: {truncate_text(each.content, MAX_EXCERPT_CHARS)} "
        f"({_when(each.valid_from, each.valid_to)})"
        for each in versions
    ]
    values = build_compact_memory_fields(found) | {"content": content}
    values |= (
        {"parent": {"id": found.parent.id, "content": truncate_text(found.parent.content, MAX_EXCERPT_CHARS)}}
        if found.parent
        else {}
    )
    values |= {"children": found.children} if found.children else {}
    values |= (
        {
            "versions": take_items_within_json_size(
                map(convert_to_builtins_without_defaults, versions), MAX_RESULT_CHARS // 3
            )
        }
        if versions
        else {}
    )
    cut = len(found.content) > MAX_WHOLE_CONTENT_CHARS
    more = "the end of its content; REST returns all of it" if cut else ""
    return ToolReply("\n".join(lines), values, more, verbatim=" ".join(content.split()))


def build_compact_memory_fields(memory: Memory) -> dict[str, Any]:
    """Return a memory as values, without empty and default values."""
    values: dict[str, Any] = {
        "id": memory.id,
        "content": truncate_text(memory.content, MAX_DETAIL_CHARS),
        "memory_type": memory.memory_type,
        "confidence": round(memory.effective_confidence, 3),
        "tags": memory.tags,
        "source": memory.source,
        "context": memory.context and truncate_text(memory.context, MAX_EXCERPT_CHARS),
        "metadata": omit_oversized_attributes(memory.metadata, MAX_DETAIL_CHARS),
        "entities": [each.name for each in memory.entities],
        "layer": memory.layer,
        "parent_id": memory.parent_id,
        "valid_from": memory.valid_from,
        "valid_to": memory.valid_to,
        "ended": memory.ended,
        "belongs_to": memory.belongs_to,
        "created_at": memory.created_at,
    }
    if isinstance(memory, RecalledMemory):
        values |= {"score": round(memory.score, 3), "via": memory.via, "said": memory.said, "store": memory.store}
    return {name: value for name, value in values.items() if value not in (None, [], {}, UNSET)}


def _when(*bounds: str | None) -> str:
    since, until = (each and trim_zero_time_fraction(each) for each in bounds)
    return f"true from {since or 'the beginning'} until {until or 'now'}"


_RETAIN_TOOL = "retain"
_MORE_ARGUMENTS = " More arguments: resource kgserve://_tools/"
MEMORY_TOOLS: tuple[McpTool[Any], ...] = (
    McpTool(
        "retain",
        "Retain something",
        "When something will matter later (a decision, a preference, a fact): remember it, one thing at a time. "
        "Repeating it is harmless. If it changed, supersedes is the id of what is no longer true."
        f"{_MORE_ARGUMENTS}retain.",
        RetainMemoryArguments,
        "retaining",
        _retain,
        "writes",
        retry_hint="recall with its words shows whether it was stored; retaining it again keeps one",
    ),
    McpTool(
        "recall",
        "Recall what is known",
        "Before answering about the user, the project or earlier decisions: the memories that match a question, best "
        f"first, with ids.{_MORE_ARGUMENTS}recall.",
        RecallArguments,
        "recalling",
        _recall,
        nothing={"memories": []},
        maker=_RETAIN_TOOL,
    ),
    McpTool(
        "reflect",
        "Put memories in order",
        "When many memories have accumulated, or at the end of a task: merges duplicates, links facts below concepts, "
        "and returns numbered proposals to accept or refuse. dry_run writes nothing.",
        ReflectArguments,
        "reflecting",
        lambda graph, given: organize_memories.place_memories_under_concepts(
            graph, convert_arguments_to_request(OrganizeMemoriesRequest, given)
        ),
        "overwrites",
        retry_hint="dry_run=true shows what is left to do",
        is_long=True,
    ),
    McpTool(
        "forget",
        "Forget memories",
        "When the user asks, or it was never true: withdraws memories by ids, or an entity with all about it. query "
        "only lists matches. For what changed: retain.",
        ForgetMemoriesArguments,
        "forgetting",
        lambda graph, given: forget.soft_delete_or_restore_memories(
            graph, convert_arguments_to_request(retain_forget_recall_models.ForgetRequest, given)
        ),
        "deletes",
        administers_with="erase",
    ),
    McpTool(
        "get_memory",
        "Read one memory",
        "When a recalled line is truncated, or its history matters: the full memory with its former versions.",
        GetMemoryArguments,
        "reading the memory",
        _get_memory,
    ),
)
"""Memory tools in the order of their use."""
