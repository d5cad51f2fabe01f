"""Reply of the tool `forget` for an entity: how much goes, and what stays and why."""

from __future__ import annotations

from typing import Any

import msgspec

from kgserve.memory.retain_forget_recall_models import ForgetAnswer
from kgserve.server.mcp.tool_replies import ToolReply, format_count
from kgserve.server.mcp.tool_structured_content import (
    MAX_EXCERPT_CHARS,
    MAX_RESULT_CHARS,
    take_lines_within_length,
    truncate_text,
)

_MAX_SHOWN_KEPT = 10


def build_forget_entity_reply(found: ForgetAnswer, entity: str, *, erases: bool) -> ToolReply:
    """Return the reply for a forgotten or restored entity, or for a preview of it."""
    if found.entities_removed is msgspec.UNSET:
        return _reply_restored(found, entity)
    if not (found.memories_removed or found.entities_removed or found.kept_count):
        return ToolReply(f"Nothing is about {entity!r} or names it.", {"memories_removed": 0})
    would = "would be " if found.dry_run else ""
    done = "erased" if erases else "forgotten"
    memories = format_count(found.memories_removed, "memory", "memories")
    lines = [f"{entity!r} {would}{done}: {memories}."]
    for each in found.preview or ():
        also = f" (also about {', '.join(each.also_about)})" if each.also_about else ""
        lines.append(f"[{each.id}] {truncate_text(each.content, MAX_EXCERPT_CHARS)}{also}")
    kept = found.kept or []
    lines += [
        f"kept {each.kind} [{each.id}] {truncate_text(each.content, MAX_EXCERPT_CHARS)}: {each.reason}"
        for each in kept[:_MAX_SHOWN_KEPT]
    ]
    values: dict[str, Any] = {"memories_removed": found.memories_removed}
    names = ("ids", "entities_removed", "memories_shared", "kept_count", "dry_run")
    values |= {name: value for name in names if (value := getattr(found, name))}
    if kept:
        values["kept"] = [{"id": each.id, "kind": each.kind, "reason": each.reason} for each in kept[:_MAX_SHOWN_KEPT]]
    hints: list[str] = []
    if (more := (found.kept_count or 0) - _MAX_SHOWN_KEPT) > 0:
        hints.append(f"{more} more stay")
    if found.dry_run:
        hints.append("without dry_run it is forgotten")
    elif not erases:
        hints.append("undo=true with the same entity restores it")
    if found.remains:
        values["remains"] = msgspec.to_builtins(found.remains)
        hints.append("may still contain it: " + ", ".join(each.name for each in found.remains))
    return ToolReply("\n".join(take_lines_within_length(lines, MAX_RESULT_CHARS)), values, hint="; ".join(hints))


def _reply_restored(found: ForgetAnswer, entity: str) -> ToolReply:
    would = "would be " if found.dry_run else ""
    memories = format_count(found.memories_restored, "memory", "memories")
    values: dict[str, Any] = {"memories_restored": found.memories_restored, "ids": found.ids}
    values |= {"dry_run": True} if found.dry_run else {}
    return ToolReply(f"{entity!r} {would}restored: {memories}.", values, hint=format_unrestored_hint(found))


def format_unrestored_hint(found: ForgetAnswer) -> str:
    """Return what an undo did not restore, and why."""
    lost = [f"[{each.id}] {each.reason}" for each in (found.not_restored or ())[:_MAX_SHOWN_KEPT]]
    return f"not restored: {'; '.join(lost)}" if lost else ""
