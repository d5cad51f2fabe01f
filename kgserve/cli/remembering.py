"""``kgserve retain``, ``recall``, ``reflect`` and ``forget``: the four verbs of a memory, asked of a running server."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterable
from contextlib import suppress

import click
import msgspec

from kgserve.cli.remote import connect, server_options
from kgserve.cli.terminal import show_json
from kgserve.decoding import decode_json
from kgserve.errors import KgserveError
from kgserve.model.layers import RECALLED, RECALLED_TOKENS
from kgserve.model.memories import Memory
from kgserve.model.reflection import Reflection
from kgserve.model.telling import memory_line, proposal_line

HOOK_SECONDS = 0.3
"""A server that says nothing for so long is none to a hook."""
_HOOK_ANSWER_SECONDS = 2.0
_HOOK_TOKENS = 500
_HOOK_MEMORIES = 5
_MOST_QUERY = 2_000
_PROMPT = "UserPromptSubmit"

_json = click.option("--json", "as_json", is_flag=True, help="Print the server's answer as JSON.")


class HookEvent(msgspec.Struct):
    """What an editor tells a hook, as far as it matters here."""

    hook_event_name: str = ""
    prompt: str = ""


class _Numbers(click.ParamType[list[int]]):
    """Whole numbers with commas between."""

    name = "NUMBERS"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        if not re.fullmatch(r"\s*\d{1,4}\s*(,\s*\d{1,4}\s*)*", value):
            self.fail(f"{value!r} are no numbers with commas between, such as 1,3", param, ctx)
        return [int(each) for each in value.split(",")]


@click.command()
@click.argument("store")
@click.argument("text")
@click.option("--type", "memory_type", metavar="TYPE", help="Kind of memory, such as decision.  [default: fact]")
@click.option("--about", metavar="NAME", multiple=True, help="Whom or what it is about; may be repeated.")
@click.option("--supersedes", metavar="ID", help="The memory that it takes the place of, which stays as history.")
@click.option("--source", metavar="TEXT", help="Where it is from.")
@_json
@server_options
def retain(
    store: str,
    text: str,
    *,
    memory_type: str | None,
    about: tuple[str, ...],
    supersedes: str | None,
    source: str | None,
    as_json: bool,
    server: str | None,
    data_dir: str | None,
) -> None:
    """Have STORE remember TEXT; - reads it from standard input."""
    content = sys.stdin.read().strip() if text == "-" else text
    with connect(server, data_dir) as client:
        done = client.store(store).retain(
            content,
            memory_type=memory_type,
            entities=[{"name": name} for name in about],
            supersedes=supersedes,
            source=source,
        )
    if as_json:
        show_json(done)
        return
    for step in done.operations:
        click.echo(f"{step.type} [{step.memory_id}] {step.content} ({step.reason})")
    for near in done.similar:
        click.echo(f"similar, differs in {near.differs}: [{near.id}] {near.content}")


@click.command()
@click.argument("store")
@click.argument("query", required=False)
@click.option("--limit", type=click.IntRange(1, 100), help=f"Most memories.  [default: {RECALLED}]")
@click.option("--budget", type=click.IntRange(1), help=f"Most tokens.  [default: {RECALLED_TOKENS}]")
@click.option(
    "--hook", is_flag=True, help="Read an editor's event from standard input, and answer with context for it."
)
@_json
@server_options
def recall(
    store: str,
    query: str | None,
    *,
    limit: int | None,
    budget: int | None,
    hook: bool,
    as_json: bool,
    server: str | None,
    data_dir: str | None,
) -> None:
    """Show what STORE knows about QUERY, best and surest first.

    With --hook what fits the prompt of the event is printed as an editor takes it in, or the newest memories at the
    start of a session. Then there is no error: without a server that answers within 0.3 seconds it says nothing.
    """
    if hook:
        with suppress(KgserveError, click.ClickException, OSError, ValueError, msgspec.MsgspecError):
            _answer_hook(store, limit or _HOOK_MEMORIES, budget or _HOOK_TOKENS, server, data_dir)
        return
    if not query:
        raise click.UsageError("say what to recall, as QUERY")
    with connect(server, data_dir) as client:
        found = client.store(store).recall(
            query, limit=limit or RECALLED, budget=budget or RECALLED_TOKENS, expand=True
        )
    if as_json:
        show_json(found)
        return
    _show(found.hits)
    if found.withheld:
        left = ", ".join(f"{number:,} {why.replace('_', ' ')}" for why, number in found.withheld.items())
        click.echo(f"left out: {left}", err=True)


def _answer_hook(store: str, limit: int, budget: int, server: str | None, data_dir: str | None) -> None:
    event = decode_json(sys.stdin.read().encode(), HookEvent)
    if event.hook_event_name == _PROMPT and not event.prompt.strip():
        return
    with connect(server, data_dir, timeout=HOOK_SECONDS) as client:
        client.health()
    with connect(server, data_dir, timeout=_HOOK_ANSWER_SECONDS) as client:
        there = client.store(store)
        if event.prompt.strip():
            # What nobody has asked for is no use of a memory.
            query = event.prompt.strip()[:_MOST_QUERY]
            hits = there.recall(query, limit=limit, budget=budget, expand=True, touch=False).hits
        else:
            hits = there.memories(limit=limit).memories
    if not hits:
        return
    now = time.time()
    lines = [f'What the store "{store}" remembers, which may or may not matter here:']
    text = "\n".join([*lines, *(memory_line(each, now) for each in hits)])
    said = {"hookEventName": event.hook_event_name or _PROMPT, "additionalContext": text}
    click.echo(json.dumps({"hookSpecificOutput": said}, ensure_ascii=False))


@click.command()
@click.argument("store")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and write nothing.")
@click.option("--accept", type=_Numbers(), default=None, help="Carry these proposals of the last run out: 1,3.")
@click.option("--refuse", type=_Numbers(), default=None, help="Have these not be made again.")
@click.option("--undo", is_flag=True, help="Take the last run back.")
@_json
@server_options
def reflect(
    store: str,
    *,
    dry_run: bool,
    accept: list[int] | None,
    refuse: list[int] | None,
    undo: bool,
    as_json: bool,
    server: str | None,
    data_dir: str | None,
) -> None:
    """Put the memories of STORE in order: merge, place below concepts, and propose what is uncertain, by number."""
    with connect(server, data_dir) as client:
        done = client.store(store).reflect(dry_run=dry_run, accept=accept or (), refuse=refuse or (), undo=undo)
    if as_json:
        show_json(done)
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
@click.option("--reason", default="", metavar="TEXT", help="Why; it is kept with them.")
@_json
@server_options
def forget(
    store: str,
    ids: tuple[str, ...],
    *,
    undo: bool,
    dry_run: bool,
    hard: bool,
    reason: str,
    as_json: bool,
    server: str | None,
    data_dir: str | None,
) -> None:
    """Withdraw memories of STORE by their ids, with their former versions."""
    with connect(server, data_dir) as client:
        done = client.store(store).forget(ids=ids, undo=undo, dry_run=dry_run, hard=hard, reason=reason)
    if as_json:
        show_json(done)
        return
    would = "would be " if dry_run else ""
    number, verb = (
        (done.memories_restored, "brought back")
        if undo
        else (done.memories_removed, "deleted" if hard else "withdrawn")
    )
    click.echo(f"{number:,} {'memory' if number == 1 else 'memories'} {would}{verb}")


def _show(memories: Iterable[Memory]) -> None:
    now = time.time()
    for each in memories:
        click.echo(memory_line(each, now))
