"""What a store's owner chooses for it, what callers send to change that, and what they are answered."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from kgserve.model.fields import MAX_ID_BYTES

MAX_NAME_BYTES = 512
MAX_KINDS = 1_000
MAX_DAYS = 36_500

ConflictPolicy = Literal["lww", "manual"]
Keeping = Literal["all", "none"] | int
"""How much of a store's history is kept: everything, nothing, or the states that ended in so many last days."""

_Kind = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID_BYTES)]
_Name = Annotated[str | None, msgspec.Meta(description="For people, at most 512 bytes; left out: kept; empty: cleared")]
_Policy = Annotated[
    ConflictPolicy | None,
    msgspec.Meta(description="What becomes of a write that is based on a former version: it wins, or both are kept"),
]
_Kinds = (
    Annotated[
        list[_Kind],
        msgspec.Meta(max_length=MAX_KINDS, description="Types that nodes may have; left out: kept; empty: all of them"),
    ]
    | None
)
_Metadata = Annotated[
    dict[str, Any] | None,
    msgspec.Meta(description="Any JSON object, at most 256 KiB and 64 levels; left out: kept; given: replaces"),
]
_Days = Annotated[int, msgspec.Meta(ge=1, le=MAX_DAYS)]
_History = Annotated[
    Literal["all", "none"] | _Days | None,
    msgspec.Meta(description="What is kept of former states: all, none, or those of so many last days (1 to 36,500)"),
]


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one store; an empty ``kind_whitelist`` lets every type in."""

    name: str = ""
    conflict_policy: ConflictPolicy = "lww"
    kind_whitelist: tuple[str, ...] = ()
    metadata: dict[str, Any] = {}
    history: Keeping = "all"


class StoreSettingsRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Settings to change, or to create a store with. What is left out, or null, stays."""

    name: _Name = None
    conflict_policy: _Policy = None
    kind_whitelist: _Kinds = None
    metadata: _Metadata = None
    history: _History = None


class StoreSettingsAnswer(msgspec.Struct, kw_only=True):
    """The settings of ``store``; ``name`` is the one for people. ``sequence`` is the store's last commit."""

    store: str
    name: str
    conflict_policy: ConflictPolicy
    kind_whitelist: list[str]
    metadata: dict[str, Any]
    history: Keeping
    created_at: str
    sequence: int


class PruneRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which former states to forget."""

    before: (
        Annotated[
            str,
            msgspec.Meta(
                max_length=64,
                description="Forget what had ended by then: a sequence, an RFC 3339 time, or days such as 30d; "
                "left out: as the store's settings say",
            ),
        ]
        | None
    ) = None


class PruneAnswer(msgspec.Struct, kw_only=True):
    """``pruned`` states were forgotten; ``oldest`` is the first sequence that can be looked at as of."""

    store: str
    pruned: int
    oldest: int
    sequence: int
