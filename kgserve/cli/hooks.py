"""The editors and agents that run a command at the start of a session, or with each prompt, and take in what it prints.

Each has a file of its own form, and reads JSON: most take the context in `hookSpecificOutput`, which names the event;
Cursor at the top. What the event of an editor says decides how it is answered, so that no option has to.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

TIMEOUT = 5
"""Seconds that an editor gives the command, which ends earlier by itself."""
_OF_PROMPTS = frozenset({"UserPromptSubmit", "BeforeAgent", "beforeSubmitPrompt"})
_OF_CURSOR = frozenset({"sessionStart", "beforeSubmitPrompt"})


class HookEvent(msgspec.Struct):
    """What an editor tells a hook, as far as it matters here; one writes the names in two ways."""

    hook_event_name: str = ""
    event_name: str = msgspec.field(name="hookEventName", default="")
    prompt: str = ""

    @property
    def name(self) -> str:
        """The event, as the editor calls it."""
        return self.hook_event_name or self.event_name or "UserPromptSubmit"

    @property
    def question(self) -> str:
        """The prompt, without blanks around it."""
        return self.prompt.strip()

    @property
    def is_empty(self) -> bool:
        """Whether it is about a prompt that says nothing."""
        return self.name in _OF_PROMPTS and not self.question

    def answer(self, context: str) -> str:
        """What the editor takes in as context for its model."""
        if self.name in _OF_CURSOR:
            return json.dumps({"additional_context": context}, ensure_ascii=False)
        said = {"hookEventName": self.name, "additionalContext": context}
        return json.dumps({"hookSpecificOutput": said}, ensure_ascii=False)


class HookClient(NamedTuple):
    """One of them. ``events`` are those that its model hears the answer to; ``more``: what else has to be done.

    ``grouped``: hooks stand in groups, each with a matcher that may be left out. ``version`` is that of the file.
    """

    name: str
    place: str
    events: tuple[str, ...] = ("SessionStart", "UserPromptSubmit")
    grouped: bool = True
    typed: bool = True
    milliseconds: bool = False
    version: int | None = None
    more: str = ""

    def entries(self, command: str) -> str:
        """What its file has to hold, to run a command."""
        hook: dict[str, Any] = {"type": "command"} if self.typed else {}
        hook |= {"command": command, "timeout": TIMEOUT * 1_000 if self.milliseconds else TIMEOUT}
        entry = [{"hooks": [hook]}] if self.grouped else [hook]
        version = {} if self.version is None else {"version": self.version}
        return json.dumps({**version, "hooks": dict.fromkeys(self.events, entry)}, indent=2, ensure_ascii=False)


_ALL = (
    HookClient("claude-code", ".claude/settings.json in the project, or ~/.claude/settings.json"),
    HookClient(
        "codex",
        ".codex/hooks.json in the project, or ~/.codex/hooks.json",
        more="older versions want hooks = true, or codex_hooks = true, under [features] in config.toml",
    ),
    HookClient(
        "gemini",
        ".gemini/settings.json in the project, or ~/.gemini/settings.json",
        events=("SessionStart", "BeforeAgent"),
        milliseconds=True,
    ),
    HookClient(
        "cursor",
        ".cursor/hooks.json in the project, or ~/.cursor/hooks.json",
        events=("sessionStart",),
        grouped=False,
        typed=False,
        version=1,
        more="its model hears nothing of what is said with a prompt, so it gets memories at the start alone",
    ),
    HookClient(
        "vscode",
        ".github/hooks/kgserve.json in the project",
        events=("SessionStart",),
        grouped=False,
        more="its model hears nothing of what is said with a prompt, so it gets memories at the start alone",
    ),
)

HOOK_CLIENTS: Mapping[str, HookClient] = {client.name: client for client in _ALL}
