"""``kgserve retain``, ``recall``, ``reflect`` and ``forget``: the four verbs of a memory, asked of a running server."""

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

from kgserve.cli.mcp import HookEvent
from kgserve.cli.options import connect, given, server_options
from kgserve.cli.terminal import as_json_option, told_as_json
from kgserve.errors import KgserveError
from kgserve.memory.api import ConsolidationReport, ConsolidationUndone, Memory, RecalledMemory
from kgserve.memory.reflect_api import Reflection, memory_line, proposal_line
from kgserve.memory.retain_api import MAX_CONVERSATION_MESSAGES, RECALLED, RECALLED_TOKENS
from kgserve.platform.codecs import decode_json

if TYPE_CHECKING:
    from kgserve.client import Store

DEFAULT_HOOK_TIMEOUT_SECONDS = 0.3
"""So long a server may take in all to answer a hook."""
MIN_HOOK_SIMILARITY = 0.35
"""What is farther from a prompt than this cosine is about something else."""
_DEFAULT_HOOK_TOKENS = 500
_DEFAULT_HOOK_MEMORIES = 5
_MAX_HOOK_QUERY_CHARS = 2_000


class _Numbers(click.ParamType[list[int]]):
    """Whole numbers with commas between."""

    name = "NUMBERS"

    @override
    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        if not re.fullmatch(r"\s*\d{1,4}\s*(,\s*\d{1,4}\s*)*", value):
            self.fail(f"{value!r} are no numbers with commas between, such as 1,3", param, ctx)
        return [int(each) for each in value.split(",")]


@click.command()
@click.argument("store")
@click.argument("text", required=False)
@click.option(
    "--file",
    "lines",
    type=click.File("rb"),
    help="In place of TEXT: what to remember line by line, each a JSON object such as retain takes; - reads it from "
    "standard input.",
)
@click.option("--type", "memory_type", metavar="TYPE", help="Kind of memory, such as decision.  [default: fact]")
@click.option("--about", metavar="NAME", multiple=True, help="Whom or what it is about; may be repeated.")
@click.option("--supersedes", metavar="ID", help="The memory that it takes the place of, which stays as history.")
@click.option("--source", metavar="TEXT", help="Where it is from.")
@as_json_option
@server_options
def retain(
    store: str,
    text: str | None,
    *,
    lines: BinaryIO | None,
    memory_type: str | None,
    about: tuple[str, ...],
    supersedes: str | None,
    source: str | None,
) -> None:
    """Have STORE remember TEXT; - reads it from standard input.

    With --file up to 1,000 lines are kept in one commit, in their order; of those that are refused nothing is.
    """
    if (text is None) == (lines is None):
        raise click.UsageError("say what to remember, as TEXT or with --file")
    if lines is not None:
        if memory_type or about or supersedes or source:
            raise click.UsageError("what is true of a line stands in it: memory_type, entities, supersedes, source")
        with connect() as client:
            _retain_lines(client.store(store), lines)
        return
    content = sys.stdin.read().strip() if text == "-" else text or ""
    with connect() as client:
        done = client.store(store).retain(
            content,
            memory_type=memory_type,
            entities=[{"name": name} for name in about],
            supersedes=supersedes,
            source=source,
        )
    if told_as_json(done):
        return
    for step in done.operations:
        click.echo(f"{step.type} [{step.memory_id}] {step.content} ({step.reason})")
    for near in done.similar:
        click.echo(f"similar, differs in {near.differs}: [{near.id}] {near.content}")


def _retain_lines(store: Store, lines: Iterable[bytes]) -> None:
    done: Counter[str] = Counter()
    number = 0
    for some in _batches(lines):
        try:
            found = store.retain_batch(some)
        except KgserveError as error:
            error.reword(
                f"of lines {number + 1:,} to {number + len(some):,} nothing is kept, those before are: {error}"
            )
            raise
        number += len(some)
        told_as_json(found)
        done.update(step.type for each in found.results for step in each.operations)
    if not given("as_json"):
        click.echo(f"{number:,} lines: " + (", ".join(f"{done[each]:,} {each}" for each in done) or "nothing"))


def _batches(lines: Iterable[bytes]) -> Iterator[list[dict[str, Any]]]:
    """The lines of a file as objects, as many at once as may be sent."""
    some: list[dict[str, Any]] = []
    size = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            item = decode_json(line, dict[str, Any])
        except msgspec.MsgspecError as error:
            raise click.ClickException(f"line {number:,} is no JSON object: {error}") from error
        texts = len(item["content"]) if isinstance(item.get("content"), list) else 1
        if some and size + texts > MAX_CONVERSATION_MESSAGES:
            yield some
            some, size = [], 0
        some.append(item)
        size += texts
    if some:
        yield some


@click.command()
@click.argument("store")
@click.argument("query", required=False)
@click.option("--limit", type=click.IntRange(1, 100), help=f"Most memories.  [default: {RECALLED}]")
@click.option("--budget", type=click.IntRange(1), help=f"Most tokens.  [default: {RECALLED_TOKENS}]")
@click.option("--also", metavar="STORE", multiple=True, help="Another store to ask as well; may be repeated.")
@click.option(
    "--hook", is_flag=True, help="Read an editor's event from standard input, and answer with context for it."
)
@click.option(
    "--within",
    type=click.FloatRange(0, min_open=True),
    default=DEFAULT_HOOK_TIMEOUT_SECONDS,
    show_default=True,
    help="With --hook: seconds that the server may take in all.",
)
@as_json_option
@server_options
def recall(
    store: str,
    query: str | None,
    *,
    limit: int | None,
    budget: int | None,
    also: tuple[str, ...],
    hook: bool,
    within: float,
) -> None:
    """Show what STORE knows about QUERY, best and surest first.

    With --hook what fits the prompt of the event is printed as an editor takes it in, or the newest memories at the
    start of a session; a prompt about something else gets nothing. Then there is no error: without a server that
    answers in time it says nothing.
    """
    if hook:
        with suppress(KgserveError, click.ClickException, OSError, ValueError, msgspec.MsgspecError):
            _answer_hook(Hook(store, also, limit or _DEFAULT_HOOK_MEMORIES, budget or _DEFAULT_HOOK_TOKENS, within))
        return
    if not query:
        raise click.UsageError("say what to recall, as QUERY")
    with connect() as client:
        found = client.store(store).recall(
            query, limit=limit or RECALLED, budget=budget or RECALLED_TOKENS, expand=True, also=also
        )
    if told_as_json(found):
        return
    _show(found.hits)
    if found.withheld:
        left = ", ".join(f"{number:,} {why.replace('_', ' ')}" for why, number in found.withheld.items())
        click.echo(f"left out: {left}", err=True)


class Hook(NamedTuple):
    """What a hook tells from which store, and how long its server may take in all, in seconds."""

    store: str
    also: Sequence[str]
    limit: int
    budget: int
    seconds: float


def _answer_hook(hook: Hook) -> None:
    """Print what an editor's event is answered with, if the server says so in time; else nothing."""
    event = decode_json(sys.stdin.read().encode(), HookEvent)
    if event.is_empty:
        return
    # Here, for the seconds are the server's and not the disk's.
    import_module("kgserve.client")
    context = click.get_current_context()

    def ask() -> Sequence[Memory]:
        with context.scope(cleanup=False), connect(timeout=hook.seconds) as client:
            return _remembered(client.store(hook.store), hook, event.question)

    found = in_time(hook.seconds, ask)
    if not found:
        return
    now = time.time()
    stores = " and ".join(f'"{name}"' for name in (hook.store, *hook.also))
    lines = [f"What the store {stores} remembers, which may or may not matter here:"]
    click.echo(event.answer("\n".join([*lines, *(memory_line(each, now) for each in found)])))


def _remembered(store: Store, hook: Hook, question: str) -> Sequence[Memory]:
    """What fits a question, and nothing of what does not; the newest memories where there is none."""
    if not question:
        return store.memories(limit=hook.limit).memories
    # What nobody has asked for is no use of a memory, and nothing that a prompt should wait for.
    found = store.recall(
        question[:_MAX_HOOK_QUERY_CHARS],
        limit=hook.limit,
        budget=hook.budget,
        also=hook.also,
        touch=False,
        at_least=0,
    )
    return found.hits if found.degraded else [each for each in found.hits if _fits(each)]


def _fits(memory: RecalledMemory) -> bool:
    return isinstance(memory.semantic_score, float) and memory.semantic_score >= MIN_HOOK_SIMILARITY


def in_time(seconds: float, work: Callable[[], Sequence[Memory]]) -> Sequence[Memory]:
    """What comes of some work; nothing if it fails or takes longer, and then it ends with the process."""
    found: list[Sequence[Memory]] = []

    def run() -> None:
        with suppress(KgserveError, click.ClickException, OSError, ValueError, msgspec.MsgspecError):
            found.append(work())

    # A time limit of the client's would be one for each step.
    thread = threading.Thread(target=run, name="kgserve-hook", daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else ()


@click.command()
@click.argument("store")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and write nothing.")
@click.option("--accept", type=_Numbers(), default=None, help="Carry these proposals of the last run out: 1,3.")
@click.option("--refuse", type=_Numbers(), default=None, help="Have these not be made again.")
@click.option("--undo", is_flag=True, help="Take the last run back.")
@as_json_option
@server_options
def reflect(store: str, *, dry_run: bool, accept: list[int] | None, refuse: list[int] | None, undo: bool) -> None:
    """Put the memories of STORE in order: merge, place below concepts, and propose what is uncertain, by number."""
    with connect() as client:
        done = client.store(store).reflect(dry_run=dry_run, accept=accept or (), refuse=refuse or (), undo=undo)
    if told_as_json(done):
        return
    for line in _of_reflection(done):
        click.echo(line)


def _of_reflection(done: Reflection) -> Iterable[str]:
    would = "would be " if done.dry_run else ""
    yield from map(proposal_line, done.proposals)
    yield from (f"[{each.id}] {would}below [{each.parent_id}] ({each.score:.2f})" for each in done.linked)
    yield from (f"left as it is, for somebody has changed it since: [{each}]" for each in done.skipped)
    if done.undone:
        yield f"{done.undone:,} taken back"
    counts = f"{done.merged:,} {would}merged, {done.linked_count:,} {would}placed, {done.proposals_count:,} proposed"
    yield f"{done.looked_at:,} looked at: {counts}"
    if not done.near_checked:
        yield "there were no vectors to compare by"


@click.command()
@click.argument("store")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.option("--undo", is_flag=True, help="Bring them back.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@click.option("--hard", is_flag=True, help="Delete them, which cannot be undone.")
@click.option("--erase", is_flag=True, help="Leave nothing of them in the store's files; for the role admin.")
@click.option("--reason", default="", metavar="TEXT", help="Why; it is kept with them.")
@as_json_option
@server_options
def forget(
    store: str, ids: tuple[str, ...], *, undo: bool, dry_run: bool, hard: bool, erase: bool, reason: str
) -> None:
    """Withdraw memories of STORE by their ids, with their former versions."""
    with connect() as client:
        memories = client.store(store)
        done = memories.forget(ids=ids, undo=undo, dry_run=dry_run, hard=hard, erase=erase, reason=reason)
    if told_as_json(done):
        return
    would = "would be " if dry_run else ""
    number, verb = (
        (done.memories_restored, "brought back")
        if undo
        else (done.memories_removed, "erased" if erase else "deleted" if hard else "withdrawn")
    )
    click.echo(f"{number:,} {'memory' if number == 1 else 'memories'} {would}{verb}")
    for each in done.remains:
        click.echo(f"may still have it: {each.kind} {each.name} ({each.reason})")


def _show(memories: Iterable[Memory]) -> None:
    now = time.time()
    for each in memories:
        click.echo(memory_line(each, now))


@click.command()
@click.argument("store")
@click.option("--dry-run", is_flag=True, help="Say what would be merged, and merge nothing.")
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1),
    help="Cosine that all of a cluster have with each other.  [default: as the store's settings say]",
)
@click.option(
    "--guard/--no-guard",
    default=None,
    help="Keep apart what differs in numbers, names or negations.  [default: as the store's settings say]",
)
@click.option("--undo", metavar="RUN", help="Bring back what a run has merged.")
@as_json_option
@server_options
def consolidate(store: str, *, dry_run: bool, threshold: float | None, guard: bool | None, undo: str | None) -> None:
    """Merge the memories of STORE that say the same in other words.

    What differs in numbers, names or negations is kept apart, and told. Each run has a name, by which it is undone.
    """
    if undo is not None and (dry_run or (threshold, guard) != (None, None)):
        raise click.UsageError("--undo goes alone")
    with connect() as client:
        there = client.store(store)
        if undo is not None:
            done = there.undo_consolidation(undo)
        else:
            done = there.consolidate(similarity_threshold=threshold, guard=guard, dry_run=dry_run)
    if told_as_json(done):
        return
    if isinstance(done, ConsolidationReport):
        _report(store, done)
    else:
        _undone(store, done)


def _report(store: str, found: ConsolidationReport) -> None:
    would = "would be " if found.dry_run else ""
    for cluster in found.clusters:
        click.echo(f"{cluster.primary} <- {', '.join(cluster.absorbed)}  ({cluster.similarity:.2f})")
    for pair in found.kept_apart:
        click.echo(f"kept apart, they differ in {pair.differs}: {', '.join(pair.ids)}  ({pair.similarity:.2f})")
    merged = f"{_counted(found.memories_deleted)} {would}merged into {found.clusters_found:,}"
    undo = f"; kgserve consolidate {store} --undo {found.run} takes it back" if found.run else ""
    click.echo(f"{store}: {merged}{undo}")
    if not found.near_checked:
        click.echo("Only the wording was compared, not the meaning: no embedding model answers.", err=True)


def _undone(store: str, done: ConsolidationUndone) -> None:
    skipped = f", {len(done.skipped):,} left as they are, which were changed since" if done.skipped else ""
    verb = "is" if done.restored_count == 1 else "are"
    click.echo(f"{store}: {_counted(done.restored_count)} {verb} back{skipped}")


def _counted(number: int) -> str:
    return "1 memory" if number == 1 else f"{number:,} memories"
