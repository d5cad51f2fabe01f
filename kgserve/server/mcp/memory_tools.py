"""The four verbs of a memory (retain, recall, reflect, forget), and reading one memory whole.

Arguments are those of the requests, in words for agents; what is left out is as there, but for recalling: an agent gets
ten memories of at most 2,000 tokens, with what stands beside them.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from kgserve.errors import FieldError, InvalidInput
from kgserve.graph.handle import Graph
from kgserve.graph.requests import SearchMode
from kgserve.memory import forget, reflect, retain, retain_api, whole_memory
from kgserve.memory.api import (
    EXPIRES_IN_PATTERN,
    AssociatedEntity,
    DeletedEntity,
    Id,
    Label,
    Memory,
    Metadata,
    RecallAnswer,
    RecalledMemory,
    RecallRequest,
    Text,
    Time,
)
from kgserve.memory.entities_api import RelationInput
from kgserve.memory.hierarchy_api import WholeMemoryRequest
from kgserve.memory.recall_stores import recall
from kgserve.memory.reflect_api import Reflection, ReflectRequest, memory_line, proposal_line
from kgserve.memory.relationships import WholeMemory
from kgserve.platform.settings import Dedup
from kgserve.server.mcp.argument_fields import UNLISTED_FIELD, Arguments, as_request, with_fields_of
from kgserve.server.mcp.replies import ToolReply, counted, present
from kgserve.server.mcp.tool import Tool
from kgserve.server.mcp.values import (
    MAX_DETAIL_CHARS,
    MAX_EXCERPT_CHARS,
    MAX_RESULT_CHARS,
    MAX_WHOLE_CONTENT_CHARS,
    brief_attributes,
    first_fitting,
    lean,
    lines_within,
    shortened,
)

_MAX_LISTED_VERSIONS = 20

_Labels = Annotated[list[Label], Meta(max_length=100)]
_Layer = Annotated[int, Meta(ge=0, le=3, description="0 domain, 1 concept, 2 fact, 3 episode")]
_From = Annotated[Time, Meta(description="True from then on, RFC 3339; left out: now")]
_Until = Annotated[Time, Meta(description="True until then")]
_Moment = Annotated[Time, Meta(description="RFC 3339")]


class Turn(retain_api.Message, kw_only=True):
    """One turn."""

    role: Annotated[Label, Meta(description="Who says it")] = "user"
    content: str
    at: Annotated[Time, Meta(description="RFC 3339")] | None = None


class AboutName(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """By name."""

    name: Label
    entity_type: Annotated[Label, Meta(description="person, project, technology …")] | UnsetType = UNSET


class NamedRelations(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """By names."""

    source: Label
    target: Label
    relation_type: Annotated[Label, Meta(description="In active voice: works_on")]
    strength: Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET


@with_fields_of(retain_api.RetainRequest, "first")
class Retain(Arguments, kw_only=True):
    """What to remember."""

    content: (
        Annotated[
            Annotated[str, Meta(min_length=1)]
            | Annotated[list[retain_api.Message], Meta(min_length=1, max_length=retain_api.MAX_CONVERSATION_MESSAGES)],
            Meta(description="One thing, as a sentence"),
        ]
        | UnsetType
    ) = UNSET
    messages: (
        Annotated[
            list[Turn],
            Meta(min_length=1, max_length=retain_api.MAX_CONVERSATION_MESSAGES, description="Or the turns of a talk"),
        ]
        | UnsetType
    ) = UNSET
    entity_id: Annotated[Id, Meta(description="Memory that this is the present state of")] | UnsetType = UNSET
    supersedes: Annotated[Id, Meta(description="Memory that is no longer true; it stays as history")] | UnsetType = (
        UNSET
    )
    memory_type: Annotated[Label, Meta(description="fact, decision, preference, procedure …")] | UnsetType = UNSET
    layer: _Layer | UnsetType = UNSET
    parent: Annotated[Text, Meta(description="Memory that it stands below")] | UnsetType = UNSET
    tags: _Labels | UnsetType = UNSET
    entities: Annotated[list[AboutName], Meta(max_length=100, description="Whom or what it is about")] | UnsetType = (
        UNSET
    )
    relations: Annotated[list[NamedRelations], Meta(max_length=100, description="Between entities")] | UnsetType = UNSET
    update: Annotated[Literal["auto", "correct", "never"], Meta(description="correct: overwrite")] = "auto"
    metadata: Annotated[Metadata, Meta(description="Any object")] | UnsetType = UNSET
    expires_in: (
        Annotated[str, Meta(pattern=EXPIRES_IN_PATTERN, description="True so long: 12h, 7d, 2w")] | UnsetType
    ) = UNSET
    dedup: Annotated[Dedup | UnsetType, UNLISTED_FIELD] = UNSET
    extract: Annotated[bool | None, UNLISTED_FIELD] = None
    importance: Annotated[float, Meta(ge=0, le=1, description="1: never fades away")] | UnsetType = UNSET
    source: Annotated[Text, Meta(description="Where it is from; of a talk its name")] | UnsetType = UNSET
    context: Annotated[str, Meta(description="What it was met in")] | UnsetType = UNSET
    valid_from: _From | UnsetType = UNSET
    valid_to: _Until | UnsetType = UNSET
    created_at: Annotated[_Moment | UnsetType, UNLISTED_FIELD] = UNSET


@with_fields_of(
    RecallRequest,
    *("offset", "alpha", "depth", "metadata", "explain", "after_date", "before_date"),
)
class Recall(Arguments, kw_only=True):
    """What to recall."""

    query: Annotated[str, Meta(min_length=1, max_length=10_000, description="In plain words")]
    limit: Annotated[int, Meta(ge=1, le=100, description="Most memories")] = retain_api.RECALLED
    budget: Annotated[int, Meta(ge=1, le=25_000, description="Most tokens")] = retain_api.RECALLED_TOKENS
    mode: Annotated[SearchMode, Meta(description="By words, meaning, both, or along relations")] = "hybrid"
    types: Annotated[_Labels, Meta(description="Any of these")] | UnsetType = UNSET
    tags: Annotated[_Labels, Meta(description="All of these")] | UnsetType = UNSET
    layer: _Layer | UnsetType = UNSET
    entity: Annotated[Label, Meta(description="Only about this one, by name")] | UnsetType = UNSET
    source: Annotated[Label, Meta(description="Only from there")] | UnsetType = UNSET
    after: _Moment | UnsetType = UNSET
    before: _Moment | UnsetType = UNSET
    min_confidence: Annotated[float, Meta(ge=0, le=1, description="Leave out what is less sure")] | UnsetType = UNSET
    min_similarity: Annotated[float | UnsetType, UNLISTED_FIELD] = UNSET
    expand: Annotated[bool, Meta(description="Also what stands beside the best")] = True
    touch: Annotated[bool, Meta(description="Count as used, which keeps from fading")] = True


@with_fields_of(ReflectRequest)
class Reflect(Arguments, kw_only=True):
    """What to reflect on."""

    answer: Annotated[bool, UNLISTED_FIELD] = False


@with_fields_of(retain_api.ForgetRequest)
class Forget(Arguments, kw_only=True):
    """What to forget."""

    entity_id: Annotated[Id, Meta(description="One memory")] | UnsetType = UNSET
    ids: Annotated[list[Id], Meta(min_length=1, max_length=1_000, description="Or several")] | UnsetType = UNSET
    query: (
        Annotated[str, Meta(min_length=1, max_length=10_000, description="Forgets nothing: lists what fits")]
        | UnsetType
    ) = UNSET
    hard: Annotated[bool, Meta(description="Delete, which cannot be undone")] = False
    erase: Annotated[bool, Meta(description="Leave no trace; admin keys only")] = False
    undo: Annotated[bool, Meta(description="Bring back")] = False


class GetMemory(Arguments, kw_only=True):
    """Which memory."""

    id: Id
    touch: Annotated[bool, Meta(description="Count as used")] = True


class Recollection(RecallAnswer, kw_only=True):
    """What was recalled, as these tools tell it."""


def _retained(graph: Graph, given: Retain) -> Any:
    content = given.content or given.messages
    if not content or (given.content and given.messages):
        raise InvalidInput.at("content", "give what to remember as content, or a talk as messages")
    asked = as_request(retain_api.RetainRequest, msgspec.structs.replace(given, content=content))
    asked.entities = [AssociatedEntity(**_set(each)) for each in given.entities or ()]
    asked.relations = [RelationInput(**_set(each)) for each in given.relations or ()]
    return retain.retain(graph, asked)


def _recalled(graph: Graph, given: Recall) -> Recollection:
    asked = as_request(RecallRequest, given)
    asked.after_date, asked.before_date = given.after or None, given.before or None
    with naming_arguments({"after_date": "after", "before_date": "before"}):
        return Recollection(**msgspec.structs.asdict(recall(graph, asked)))


@contextmanager
def naming_arguments(names: Mapping[str, str]) -> Generator[None]:
    """Have refusals name the arguments of a tool, given by the names of the request's fields."""
    try:
        yield
    except InvalidInput as error:
        for field, argument in names.items():
            if error.message.startswith(f"{field}:"):
                error.reword(argument + error.message.removeprefix(field))
        error.errors = tuple(FieldError(names.get(each.path, each.path), each.message) for each in error.errors)
        raise


def _whole(graph: Graph, given: GetMemory) -> WholeMemory:
    return whole_memory.whole_memory(graph, WholeMemoryRequest(memory_id=given.id, touch=given.touch))


def _set(given: msgspec.Struct) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(given).items() if value is not UNSET}


@present.register
def _retained_reply(found: retain_api.RetainAnswer, _given: Retain, _store: str) -> ToolReply:
    lines = [
        *map(_step_line, found.operations),
        *(f"similar, differs in {each.differs}: [{each.id}] {each.content}" for each in found.similar),
    ]
    values: dict[str, Any] = {
        "operations": first_fitting(map(lean, found.operations), MAX_RESULT_CHARS // 2),
        "similar": first_fitting(map(lean, found.similar), MAX_RESULT_CHARS // 4),
        "sequence": found.sequence,
    }
    hint = ""
    if found.similar:
        hint = "what is similar was kept apart; is one of them no longer true, retain with supersedes set to its id"
    text, more = listing(lines)
    return ToolReply(text or "There was nothing to remember.", values, more, hint)


def listing(lines: Sequence[str]) -> tuple[str, str]:
    """The first lines, as many as fit, as a text, and what is said of those that do not."""
    kept = lines_within(lines, MAX_RESULT_CHARS)
    return "\n".join(kept), f"{len(lines) - len(kept)} lines do not fit" if len(kept) < len(lines) else ""


def _step_line(step: retain_api.RetainOperation) -> str:
    version = f", former version [{step.version_id}]" if step.version_id and step.version_id != step.memory_id else ""
    return f"{step.type} [{step.memory_id}]{version}: {shortened(step.content, MAX_EXCERPT_CHARS)} ({step.reason})"


@present.register
def _recollected(found: Recollection, given: Recall, _store: str) -> ToolReply:
    now = time.time()
    hints = left_out(found)
    if "below_confidence" in found.withheld:
        hints.append("a lower min_confidence shows what has faded")
    if "over_budget" in found.withheld:
        hints.append("a larger budget shows more")
    hints += without_meaning(found, given.mode)
    told = [(values_of(each), memory_line(each, now)) for each in found.hits]
    return recollection(found, given.query, told, hints)


def recollection(
    found: RecallAnswer, query: str, told: Iterable[tuple[dict[str, Any], str]], hints: Iterable[str]
) -> ToolReply:
    """What was recalled; ``told`` is each memory as values and as a line."""
    each_values, each_line = [*zip(*told, strict=True)] or ((), ())
    shown, lines = first_fitting(each_values, MAX_RESULT_CHARS), lines_within(each_line, MAX_RESULT_CHARS)
    count = min(len(shown), len(lines))
    hints = [*hints] if found.hits else ["nothing that is remembered is relevant to this query", *hints]
    head = f"{counted(len(found.hits), 'memory', 'memories')} for {shortened(query, MAX_EXCERPT_CHARS)!r}"
    values: dict[str, Any] = {"memories": shown[:count]} | ({"withheld": found.withheld} if found.withheld else {})
    if found.deleted_entity:
        hints = [deletion_told(found.deleted_entity), *hints]
        values["deleted_entity"] = msgspec.to_builtins(found.deleted_entity)
    beyond = len(found.hits) - count
    more = f"{beyond} do not fit: a lower limit, or a narrower query" if beyond else ""
    return ToolReply("\n".join([head, *lines[:count]]), values, more, "; ".join(hints))


def deletion_told(entity: DeletedEntity) -> str:
    """Say that the entity which was asked for is no longer there."""
    return f"the entity {entity.name!r} was deleted at {entity.deleted_at}; these memories were about it"


def left_out(found: RecallAnswer) -> list[str]:
    """What is said of memories that were left out, if there are any."""
    left = ", ".join(f"{number} {why.replace('_', ' ')}" for why, number in found.withheld.items())
    return [f"left out: {left}"] if left else []


def without_meaning(found: RecallAnswer, mode: SearchMode) -> list[str]:
    """What is said of an answer by words alone, where that was not asked for."""
    is_told = found.degraded and mode != "keyword"
    return ["this server has no model for meaning: ask with the words that were used"] if is_told else []


def _answered(answer: str, used: list[str]) -> ToolReply:
    lines = [answer or "Nothing is remembered that could answer it.", *(f"taken from [{each}]" for each in used)]
    values = {"dry_run": False, "proposals": [], "answer": answer, "used": used}
    return ToolReply("\n".join(lines_within(lines, MAX_RESULT_CHARS)), values)


@present.register
def _reflected(found: Reflection, _given: Reflect, _store: str) -> ToolReply:
    if isinstance(found.answer, str):
        return _answered(found.answer, found.used or [])
    would = "would be " if found.dry_run else ""
    head = (
        f"{found.looked_at:,} looked at: {found.merged:,} {would}merged, {found.linked_count:,} {would}put below a "
        f"concept, {counted(found.proposals_count, 'proposal')}."
    )
    lines = [f"Undone: {found.undone:,}."] if found.undone else []
    lines += [proposal_line(each) for each in found.proposals]
    lines += [f"[{each.id}] below [{each.parent_id}] ({each.score:.2f})" for each in found.linked]
    lines += [f"left as it is, for somebody has changed it since: [{each}]" for each in found.skipped]
    lines += [f"faded: [{each}]" for each in found.stale]
    hints = ["accept=[numbers] carries proposals out, refuse=[numbers] has them not be made again"]
    hints = hints if found.run and any(each.state == "open" for each in found.proposals) else []
    hints += [f"undo=true takes the run {found.run} back"] if found.run and not found.undone else []
    hints += [] if found.near_checked else ["there were no vectors to compare by"]
    values = {
        "dry_run": found.dry_run,
        "run": found.run,
        "looked_at": found.looked_at,
        "merged": found.merged,
        "linked_count": found.linked_count,
        "linked": first_fitting(map(msgspec.to_builtins, found.linked), MAX_RESULT_CHARS // 4),
        "proposals": first_fitting(map(lean, found.proposals), MAX_RESULT_CHARS // 3),
        "proposals_count": found.proposals_count,
        "stale": found.stale,
        "undone": found.undone,
        "skipped": found.skipped,
        "sequence": found.sequence,
    }
    text, more = listing(lines)
    said = {name: value for name, value in values.items() if value not in (None, [], 0, False)}
    text = "\n".join(filter(None, (head, text)))
    return ToolReply(text, {"dry_run": found.dry_run, "proposals": [], **said}, more, "; ".join(hints))


@present.register
def _forgotten(found: retain_api.ForgetAnswer, given: Forget, _store: str) -> ToolReply:
    if given.query or found.matches:
        lines = lines_within(map(_match_line, found.matches), MAX_RESULT_CHARS)
        head = f"Nothing was forgotten; {counted(len(found.matches), 'memory fits', 'memories fit')}:"
        shown = first_fitting(map(lean, found.matches), MAX_RESULT_CHARS)
        hint = "forget with the ids of those that are meant" if found.matches else ""
        return ToolReply("\n".join([head, *lines]), {"matches": shown}, hint=hint)
    would = "would be " if found.dry_run else ""
    if given.undo:
        text = f"{counted(found.memories_restored, 'memory', 'memories')} {would}brought back"
    else:
        done = "erased" if given.erase else "deleted" if given.hard else "withdrawn"
        text = f"{counted(found.memories_removed, 'memory', 'memories')} {would}{done}"
    names = ("memories_removed", "relations_removed", "memories_restored", "relations_restored", "ids", "sequence")
    values = {name: value for name in names if (value := getattr(found, name)) or name == "memories_removed"}
    undone = given.hard or given.erase or given.undo or found.dry_run or not found.memories_removed
    hint = "" if undone else "undo=true with the same ids brings back"
    if found.remains:
        values["remains"] = first_fitting(map(lean, found.remains), MAX_RESULT_CHARS // 4)
        hint = "may still have it: " + ", ".join(each.name for each in found.remains)
    ids = f": {', '.join(f'[{each}]' for each in found.ids)}" if found.ids else ""
    return ToolReply(f"{text}{ids}.", values | ({"dry_run": True} if found.dry_run else {}), hint=hint)


def _match_line(match: retain_api.ForgetMatch) -> str:
    return f"[{match.id}] ({match.memory_type}) {match.content}"


@present.register
def _told_whole(found: WholeMemory, _given: GetMemory, _store: str) -> ToolReply:
    now = time.time()
    content = shortened(found.content, MAX_WHOLE_CONTENT_CHARS)
    lines = [memory_line(found, now, MAX_WHOLE_CONTENT_CHARS)]
    lines += [f"below {memory_line(found.parent, now)}"] if found.parent is not None else []
    lines += [f"{counted(found.children, 'memory stands', 'memories stand')} below it"] if found.children else []
    versions = found.versions[-_MAX_LISTED_VERSIONS:]
    lines += [
        f"before [{each.id}]: {shortened(each.content, MAX_EXCERPT_CHARS)} ({_when(each.valid_from, each.valid_to)})"
        for each in versions
    ]
    values = values_of(found) | {"content": content}
    values |= (
        {"parent": {"id": found.parent.id, "content": shortened(found.parent.content, MAX_EXCERPT_CHARS)}}
        if found.parent
        else {}
    )
    values |= {"children": found.children} if found.children else {}
    values |= {"versions": first_fitting(map(lean, versions), MAX_RESULT_CHARS // 3)} if versions else {}
    cut = len(found.content) > MAX_WHOLE_CONTENT_CHARS
    return ToolReply("\n".join(lines), values, "the end of its content; REST answers with the whole" if cut else "")


def values_of(memory: Memory) -> dict[str, Any]:
    """A memory as values, without what is empty or usual."""
    values: dict[str, Any] = {
        "id": memory.id,
        "content": shortened(memory.content, MAX_DETAIL_CHARS),
        "memory_type": memory.memory_type,
        "confidence": round(memory.effective_confidence, 3),
        "tags": memory.tags,
        "source": memory.source,
        "context": memory.context and shortened(memory.context, MAX_EXCERPT_CHARS),
        "metadata": brief_attributes(memory.metadata, MAX_DETAIL_CHARS),
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


def _when(since: str | None, until: str | None) -> str:
    return f"true from {since or 'the beginning'} until {until or 'now'}"


_RETAIN_TOOL = "retain"
MEMORY_TOOLS: tuple[Tool[Any], ...] = (
    Tool(
        "retain",
        "Retain something",
        "When something will matter later (a decision, a preference, a fact about the user or the project), retain it, "
        "one thing at a time. Saying it again keeps one. What has changed: supersedes names the memory that is no "
        "longer true, and it stays as history.",
        Retain,
        "retaining",
        _retained,
        "writes",
        retry_hint="recall with its words shows whether it is there; retained again, it is met",
    ),
    Tool(
        "recall",
        "Recall what is known",
        "Before answering about the user, the project or earlier decisions, recall: the memories that fit a question "
        "and what stands beside them, best and surest first, each with the id to cite, supersede or forget it by.",
        Recall,
        "recalling",
        _recalled,
        nothing={"memories": []},
        maker=_RETAIN_TOOL,
    ),
    Tool(
        "reflect",
        "Put memories in order",
        "When many memories have come together, or at the end of a piece of work: merges what says the same, puts "
        "facts below concepts, and proposes by number what is uncertain, to accept or refuse. dry_run writes nothing.",
        Reflect,
        "reflecting",
        lambda graph, given: reflect.reflect(graph, as_request(ReflectRequest, given)),
        "overwrites",
        retry_hint="dry_run=true shows what is left to do",
        is_long=True,
    ),
    Tool(
        "forget",
        "Forget memories",
        "When the user asks to forget something, or it was never true: withdraws by ids; undo brings back. A query "
        "only lists what fits. What was true and changed: retain with supersedes.",
        Forget,
        "forgetting",
        lambda graph, given: forget.forget(graph, as_request(retain_api.ForgetRequest, given)),
        "deletes",
        administers_with="erase",
    ),
    Tool(
        "get_memory",
        "Read one memory",
        "When a recalled line is cut off, or its past matters: one memory whole, with its parent and former versions.",
        GetMemory,
        "reading the memory",
        _whole,
    ),
)
"""The four verbs in the order in which they are needed, and a look at one memory."""
