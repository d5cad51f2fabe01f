"""``kgserve retain``, ``recall``, ``reflect``, ``forget`` and ``consolidate``: the memory commands."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import click
import msgspec
from typing_extensions import override

from kgserve.cli.mcp import EditorHookEvent
from kgserve.cli.options import add_server_options, get_click_option_value, open_server_client
from kgserve.cli.terminal import as_json_option, print_json_if_requested
from kgserve.errors import KgserveError
from kgserve.memory.memory_models import ConsolidationReport, Memory, RecalledMemory, UndoConsolidationAnswer
from kgserve.memory.reflect_models import OrganizeMemoriesAnswer, format_memory_line, format_reflect_proposal_line
from kgserve.memory.retain_forget_recall_models import (
    DEFAULT_AGENT_RECALL_BUDGET_TOKENS,
    DEFAULT_AGENT_RECALL_LIMIT,
    MAX_CONVERSATION_MESSAGES,
    ForgetAnswer,
)
from kgserve.platform.codecs import decode_json

if TYPE_CHECKING:
    from kgserve.client import Store

DEFAULT_HOOK_TIMEOUT_SECONDS = 0.3
"""Default time limit in seconds for answering a hook, connection included."""
MIN_HOOK_SIMILARITY = 0.35
"""Minimum cosine similarity between a prompt and a memory shown for it."""
_DEFAULT_HOOK_TOKENS = 500
_DEFAULT_HOOK_MEMORIES = 5
_MAX_HOOK_QUERY_CHARS = 2_000


class _NumberListType(click.ParamType[list[int]]):
    """Comma-separated whole numbers."""

    name = "NUMBERS"

    @override
    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        if not re.fullmatch(r"\s*\d{1,4}\s*(,\s*\d{1,4}\s*)*", value):
            self.fail(f"{value!r} is not a list of comma-separated numbers such as 1,3", param, ctx)
        return [int(each) for each in value.split(",")]


@click.command("retain")
@click.argument("store")
@click.argument("text", required=False)
@click.option(
    "--file",
    "lines",
    type=click.File("rb"),
    help="Read memories from this file instead of TEXT, one JSON object per line; - reads it from standard input.",
)
@click.option("--type", "memory_type", metavar="TYPE", help="Kind of memory, such as decision.  [default: fact]")
@click.option("--about", metavar="NAME", multiple=True, help="Entity that it is about; may be repeated.")
@click.option("--supersedes", metavar="ID", help="Memory that it replaces; the old one remains in the history.")
@click.option("--source", metavar="TEXT", help="Source of the memory.")
@as_json_option
@add_server_options
def retain_memory_command(
    store: str,
    text: str | None,
    *,
    lines: BinaryIO | None,
    memory_type: str | None,
    about: tuple[str, ...],
    supersedes: str | None,
    source: str | None,
) -> None:
    """Store TEXT as a memory in STORE; - reads it from standard input.

    With --file, every 1,000 lines are one commit, in order; a rejected commit stores none of its lines.
    """
    if (text is None) == (lines is None):
        raise click.UsageError("Specify the memory as TEXT or with --file.")
    if lines is not None:
        if memory_type or about or supersedes or source:
            raise click.UsageError("With --file, set memory_type, entities, supersedes and source in each line.")
        with open_server_client() as client:
            _retain_lines(client.store(store), lines)
        return
    content = sys.stdin.read().strip() if text == "-" else text or ""
    with open_server_client() as client:
        done = client.store(store).retain(
            content,
            memory_type=memory_type,
            entities=[{"name": name} for name in about],
            supersedes=supersedes,
            source=source,
        )
    if print_json_if_requested(done):
        return
    for step in done.operations:
        click.echo(f"{step.type} [{step.memory_id}] {step.content} ({step.reason})")
    for near in done.similar:
        click.echo(f"similar, but differs in {near.differs}: [{near.id}] {near.content}")


def _retain_lines(store: Store, lines: Iterable[bytes]) -> None:
    done: Counter[str] = Counter()
    number = 0
    for first, last, batch in _batches(lines):
        try:
            found = store.retain_batch(batch)
        except KgserveError as error:
            error.reword(f"lines {first:,} to {last:,} were not stored, earlier lines were: {error}")
            raise
        number += len(batch)
        print_json_if_requested(found)
        done.update(step.type for each in found.results for step in each.operations)
    if not get_click_option_value("as_json"):
        click.echo(f"{number:,} lines: " + (", ".join(f"{done[each]:,} {each}" for each in done) or "nothing"))


def _batches(lines: Iterable[bytes]) -> Iterator[tuple[int, int, list[dict[str, Any]]]]:
    """Yield the lines of a file as JSON objects, in batches of the maximum size, after their first and last number."""
    batch: list[dict[str, Any]] = []
    first = last = size = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            item = decode_json(line, dict[str, Any])
        except msgspec.MsgspecError as error:
            raise click.ClickException(f"line {number:,} is not a JSON object: {error}") from error
        texts = len(item["content"]) if isinstance(item.get("content"), list) else 1
        if batch and size + texts > MAX_CONVERSATION_MESSAGES:
            yield first, last, batch
            batch, size = [], 0
        first, last = first if batch else number, number
        batch.append(item)
        size += texts
    if batch:
        yield first, last, batch


@click.command("recall")
@click.argument("store")
@click.argument("query", required=False)
@click.option(
    "--limit", type=click.IntRange(1, 100), help=f"Maximum number of memories.  [default: {DEFAULT_AGENT_RECALL_LIMIT}]"
)
@click.option(
    "--budget",
    type=click.IntRange(1),
    help=f"Maximum number of tokens.  [default: {DEFAULT_AGENT_RECALL_BUDGET_TOKENS}]",
)
@click.option("--also", metavar="STORE", multiple=True, help="Another store to recall from; may be repeated.")
@click.option("--hook", is_flag=True, help="Read an editor's event from standard input and print context for it.")
@click.option(
    "--within",
    type=click.FloatRange(0, min_open=True),
    default=DEFAULT_HOOK_TIMEOUT_SECONDS,
    show_default=True,
    help="With --hook: time limit of the server in seconds.",
)
@as_json_option
@add_server_options
def recall_memories_command(
    store: str,
    query: str | None,
    *,
    limit: int | None,
    budget: int | None,
    also: tuple[str, ...],
    hook: bool,
    within: float,
) -> None:
    """Show memories of STORE about QUERY, ordered by relevance and confidence.

    With --hook, print memories that match the event's prompt in the editor's format, or the newest ones at the start of
    a session. Prints nothing when no memory matches, when no server answers in time, or on any error.
    """
    if hook:
        with suppress(KgserveError, click.ClickException, OSError, ValueError, msgspec.MsgspecError):
            _answer_hook(
                EditorHookRecallOptions(
                    store, also, limit or _DEFAULT_HOOK_MEMORIES, budget or _DEFAULT_HOOK_TOKENS, within
                )
            )
        return
    if not query:
        raise click.UsageError("Specify QUERY.")
    with open_server_client() as client:
        found = client.store(store).recall(
            query,
            limit=limit or DEFAULT_AGENT_RECALL_LIMIT,
            budget=budget or DEFAULT_AGENT_RECALL_BUDGET_TOKENS,
            expand=True,
            also=also,
        )
    if print_json_if_requested(found):
        return
    if found.notice:
        click.echo(f"kgserve: {found.notice}", err=True)
    _show(found.hits)
    if found.withheld:
        withheld = ", ".join(f"{number:,} {why.replace('_', ' ')}" for why, number in found.withheld.items())
        click.echo(f"withheld: {withheld}", err=True)


class EditorHookRecallOptions(NamedTuple):
    """Stores, limits and timeout (in seconds) of a recall for an editor's hook."""

    store: str
    also: Sequence[str]
    limit: int
    budget: int
    seconds: float


def _answer_hook(hook: EditorHookRecallOptions) -> None:
    """Print the answer to an editor's event; nothing if the server does not answer in time."""
    event = decode_json(sys.stdin.read().encode(), EditorHookEvent)
    if event.is_empty:
        return
    # imported before the time limit starts, which is for the server and not the disk
    import_module("kgserve.client")
    context = click.get_current_context()

    def ask() -> Sequence[Memory]:
        with context.scope(cleanup=False), open_server_client(timeout=hook.seconds) as client:
            return _recall_for_hook(client.store(hook.store), hook, event.question)

    found = run_with_timeout(hook.seconds, ask)
    if not found:
        return
    now = time.time()
    stores = " and ".join(f'"{name}"' for name in (hook.store, *hook.also))
    lines = [f"Memories from the store {stores}, which may or may not be relevant:"]
    click.echo(event.answer("\n".join([*lines, *(format_memory_line(each, now) for each in found)])))


def _recall_for_hook(store: Store, hook: EditorHookRecallOptions, question: str) -> Sequence[Memory]:
    """Return memories similar to a question; the newest ones without a question."""
    if not question:
        return store.memories(limit=hook.limit).memories
    # not counted as an access, and without waiting for recent writes: no user asked for this recall
    found = store.recall(
        question[:_MAX_HOOK_QUERY_CHARS],
        limit=hook.limit,
        budget=hook.budget,
        also=hook.also,
        touch=False,
        at_least=0,
    )
    return found.hits if found.degraded else [each for each in found.hits if _is_similar(each)]


def _is_similar(memory: RecalledMemory) -> bool:
    return isinstance(memory.semantic_score, float) and memory.semantic_score >= MIN_HOOK_SIMILARITY


def run_with_timeout(seconds: float, work: Callable[[], Sequence[Memory]]) -> Sequence[Memory]:
    """Return the result of ``work``; nothing if it fails or exceeds ``seconds``.

    A thread that exceeds the limit ends with the process.
    """
    found: list[Sequence[Memory]] = []

    def run() -> None:
        with suppress(KgserveError, click.ClickException, OSError, ValueError, msgspec.MsgspecError):
            found.append(work())

    # the client's own timeout applies to each step separately
    thread = threading.Thread(target=run, name="kgserve-hook", daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else ()


@click.command("reflect")
@click.argument("store")
@click.option("--dry-run", is_flag=True, help="Report what would change without writing.")
@click.option("--accept", type=_NumberListType(), default=None, help="Apply these proposals of the last run: 1,3.")
@click.option("--refuse", type=_NumberListType(), default=None, help="Reject these proposals permanently.")
@click.option("--undo", is_flag=True, help="Undo the last run.")
@as_json_option
@add_server_options
def organize_memories_command(
    store: str, *, dry_run: bool, accept: list[int] | None, refuse: list[int] | None, undo: bool
) -> None:
    """Organize the memories of STORE: merge duplicates, assign concepts, and number uncertain changes."""
    with open_server_client() as client:
        done = client.store(store).reflect(dry_run=dry_run, accept=accept or (), refuse=refuse or (), undo=undo)
    if print_json_if_requested(done):
        return
    for line in _reflection_lines(done):
        click.echo(line)


def _reflection_lines(done: OrganizeMemoriesAnswer) -> Iterable[str]:
    would = "would be " if done.dry_run else ""
    yield from map(format_reflect_proposal_line, done.proposals)
    yield from (f"[{each.id}] {would}below [{each.parent_id}] ({each.score:.2f})" for each in done.linked)
    yield from (f"skipped, changed since: [{each}]" for each in done.skipped)
    if done.undone:
        yield f"{done.undone:,} undone"
    counts = f"{done.merged:,} {would}merged, {done.linked_count:,} {would}placed, {done.proposals_count:,} proposed"
    yield f"{done.looked_at:,} examined: {counts}"
    if not done.near_checked:
        yield "no vectors were available for comparison"


@click.command("forget")
@click.argument("store")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--entity", metavar="NAME", help="Forget this person or other entity instead of memories by ID.")
@click.option("--keep-shared", is_flag=True, help="With --entity: keep memories that are also about others.")
@click.option("--undo", is_flag=True, help="Restore them.")
@click.option("--dry-run", is_flag=True, help="Report what would change without writing.")
@click.option("--hard", is_flag=True, help="Delete them permanently.")
@click.option("--erase", is_flag=True, help="Purge them from all files of the store; requires the role admin.")
@click.option("--reason", default="", metavar="TEXT", help="Reason, stored with the memories.")
@click.option("--yes", is_flag=True, help="With --entity: do not ask for confirmation.")
@as_json_option
@add_server_options
def soft_delete_memories_command(
    store: str, ids: tuple[str, ...], *, entity: str | None, yes: bool, **options: Any
) -> None:
    """Soft-delete memories of STORE, given by id, including their previous versions.

    With --entity, delete the entity, its aliases, the memories about it and those that name it. On a terminal, confirm
    what is listed. Otherwise, --yes is required.
    """
    if (entity is None) == (not ids):
        raise click.UsageError("Specify the memories by ID, or --entity.")
    with open_server_client() as client:
        memories = client.store(store)
        if entity is None:
            done = memories.forget(ids=ids, **options)
        else:
            if not (options["dry_run"] or options["undo"] or yes):
                looking: dict[str, Any] = {**options, "dry_run": True}
                _confirm_forgetting(memories.forget(entity=entity, **looking), entity)
            confirm = entity if options["erase"] else ""
            done = memories.forget(entity=entity, confirm=confirm, **options)
    if print_json_if_requested(done):
        return
    if options["dry_run"]:
        _print_preview(done)
    number, verb = (
        (done.memories_restored, "restored")
        if options["undo"]
        else (done.memories_removed, "erased" if options["erase"] else "deleted" if options["hard"] else "forgotten")
    )
    entities = "".join(f", entity [{each}]" for each in done.entities_removed or ())
    would = "would be " if options["dry_run"] else ""
    click.echo(f"{number:,} {'memory' if number == 1 else 'memories'}{entities} {would}{verb}")
    _print_kept(done)
    for lost in done.not_restored or ():
        click.echo(f"not restored: {lost.kind} [{lost.id}]: {lost.reason}")
    for each in done.remains:
        click.echo(f"may still contain them: {each.kind} {each.name} ({each.reason})")


def _confirm_forgetting(found: ForgetAnswer, entity: str) -> None:
    """Show what would be forgotten with an entity, and ask. Raises UsageError without a terminal."""
    if not (found.memories_removed or found.entities_removed):
        return
    if not sys.stdin.isatty():
        raise click.UsageError("Standard input is not a terminal; use --yes to confirm, or --dry-run to see what goes.")
    _print_preview(found)
    _print_kept(found)
    click.confirm(f"Forget {entity!r} with {found.memories_removed:,} memories?", abort=True, err=True)


def _print_preview(found: ForgetAnswer) -> None:
    for each in found.preview or ():
        shared = f" (also about {', '.join(each.also_about)})" if each.also_about else ""
        click.echo(f"[{each.id}] {each.content}{shared}")


def _print_kept(found: ForgetAnswer) -> None:
    for each in found.kept or ():
        click.echo(f"kept {each.kind} [{each.id}] {each.content} ({each.reason})")
    if (more := (found.kept_count or 0) - len(found.kept or ())) > 0:
        click.echo(f"kept {more:,} more")


def _show(memories: Iterable[Memory]) -> None:
    now = time.time()
    for each in memories:
        click.echo(format_memory_line(each, now))


@click.command("consolidate")
@click.argument("store")
@click.option("--dry-run", is_flag=True, help="Report what would be merged without merging.")
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1),
    help="Minimum cosine similarity between members of a cluster.  [default: the store's setting]",
)
@click.option(
    "--guard/--no-guard",
    default=None,
    help="Do not merge memories that differ in numbers, names or negations.  [default: the store's setting]",
)
@click.option("--undo", metavar="RUN", help="Restore the memories that a run merged.")
@as_json_option
@add_server_options
def consolidate_memories_command(
    store: str, *, dry_run: bool, threshold: float | None, guard: bool | None, undo: str | None
) -> None:
    """Merge memories of STORE that state the same fact in different words.

    Memories that differ in numbers, names or negations are not merged but listed. Each run has an id, by which it can
    be undone.
    """
    if undo is not None and (dry_run or (threshold, guard) != (None, None)):
        raise click.UsageError("--undo cannot be combined with other options.")
    with open_server_client() as client:
        memories = client.store(store)
        if undo is not None:
            done = memories.undo_consolidation(undo)
        else:
            done = memories.consolidate(similarity_threshold=threshold, guard=guard, dry_run=dry_run)
    if print_json_if_requested(done):
        return
    if isinstance(done, ConsolidationReport):
        _print_report(store, done)
    else:
        _print_undone(store, done)


def _print_report(store: str, found: ConsolidationReport) -> None:
    would = "would be " if found.dry_run else ""
    for cluster in found.clusters:
        click.echo(f"{cluster.primary} <- {', '.join(cluster.absorbed)}  ({cluster.similarity:.2f})")
    for pair in found.kept_apart:
        click.echo(f"not merged, they differ in {pair.differs}: {', '.join(pair.ids)}  ({pair.similarity:.2f})")
    merged = f"{_counted(found.memories_deleted)} {would}merged into {found.clusters_found:,}"
    undo = f"; to undo, run kgserve consolidate {store} --undo {found.run}" if found.run else ""
    click.echo(f"{store}: {merged}{undo}")
    if not found.near_checked:
        click.echo("Only the wording was compared, not the meaning: no embedding model is available.", err=True)


def _print_undone(store: str, done: UndoConsolidationAnswer) -> None:
    skipped = f", {len(done.skipped):,} skipped because they have changed since" if done.skipped else ""
    verb = "was" if done.restored_count == 1 else "were"
    click.echo(f"{store}: {_counted(done.restored_count)} {verb} restored{skipped}")


def _counted(number: int) -> str:
    return "1 memory" if number == 1 else f"{number:,} memories"
