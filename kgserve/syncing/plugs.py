"""Who is to be told: the webhook of the settings, entry points that they name, and objects of a library's user."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from hashlib import sha256
from importlib.metadata import EntryPoint, entry_points
from typing import NamedTuple

import structlog

from kgserve.errors import InvalidInput
from kgserve.settings import Settings
from kgserve.syncing.protocol import BatchSyncer, OneByOne, VectorSyncer
from kgserve.syncing.webhook import Webhook

log = structlog.get_logger()

GROUP = "kgserve.vector_syncers"
WEBHOOK = "webhook"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")

Syncer = VectorSyncer | BatchSyncer


def _nothing() -> None:
    """What closes those who have nothing to close, and those who are their owner's to close."""


class Plug(NamedTuple):
    """Who is told, by the ``name`` that its place in each journal is kept under; another ``target`` begins anew."""

    name: str
    syncer: BatchSyncer
    target: str = ""
    close: Callable[[], object] = _nothing


def plugs(settings: Settings, given: Mapping[str, Syncer] | None = None) -> list[Plug]:
    """All who are to be told. Raises InvalidInput for what cannot be."""
    named = dict.fromkeys(each.strip() for each in settings.syncers.split(",") if each.strip())
    for name in (*named, *(given or ())):
        if name == WEBHOOK or not _NAME.fullmatch(name):
            raise InvalidInput(f"{name!r} cannot name a syncer: lower case, digits, _ and -, and not {WEBHOOK!r}")
    made = {name: _installed(name) for name in named}
    installed = [
        Plug(name, _batching(name, each), close=getattr(each, "close", _nothing)) for name, each in made.items()
    ]
    others = [Plug(name, _batching(name, each)) for name, each in (given or {}).items() if name not in made]
    return [*_webhook(settings), *installed, *others]


def _webhook(settings: Settings) -> list[Plug]:
    if not settings.webhook_url:
        return []
    if not settings.webhook_secret:
        raise InvalidInput("webhook_url asks for a secret to sign with: set KGSERVE_WEBHOOK_SECRET")
    webhook = Webhook(settings.webhook_url, settings.webhook_secret, settings.webhook_timeout)
    # Of the address, which may hold what is nobody else's business, only this is put down.
    return [Plug(WEBHOOK, webhook, sha256(settings.webhook_url.encode()).hexdigest()[:16], webhook.close)]


def _installed(name: str) -> Syncer:
    """What an installed package offers under a name: a class or a function that needs no arguments."""
    offered: dict[str, EntryPoint] = {each.name: each for each in entry_points(group=GROUP)}
    if name not in offered:
        there = ", ".join(sorted(offered)) or "none"
        raise InvalidInput(f"no installed package offers the syncer {name!r} as an entry point of {GROUP} ({there})")
    try:
        return offered[name].load()()
    except Exception as error:
        log.exception("syncer_not_made", syncer=name)
        raise InvalidInput(f"the syncer {name!r} cannot be made: {type(error).__name__}: {error}") from error


def _batching(name: str, syncer: Syncer) -> BatchSyncer:
    if isinstance(syncer, BatchSyncer):
        return syncer
    if isinstance(syncer, VectorSyncer):  # pyright: ignore[reportUnnecessaryIsInstance] - others give it
        return OneByOne(syncer)
    raise InvalidInput(f"the syncer {name!r} has neither `sync` nor `add_content` and `delete_content`")
