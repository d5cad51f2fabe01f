"""A server whose views follow, fold and are compacted all the time, and that says when: `python -m bench.eager serve`.

The limits that only large stores reach are made small, and each moment that a bench wants to hit is logged when it
begins and when it ends. Nothing else differs from `kgserve`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import structlog

from kgserve.__main__ import main
from kgserve.projections.catalog.catalog import Catalog
from kgserve.projections.cypher_engine.projection import EngineProjection
from kgserve.projections.history.history import History
from kgserve.projections.keyword import KeywordIndex
from kgserve.storage.journal.journal import Journal
from kgserve.storage.rows import fold, view
from kgserve.stores import compaction

MOMENTS = ("append", "base", "engine", "catalog", "history", "index")
FOLD_ROWS = 300
COMPACTED_BYTES = 128 << 10

log = structlog.get_logger()


def begins(moment: str) -> str:
    """The event that is logged when a moment begins."""
    return f"{moment}_begins"


def ends(moment: str) -> str:
    """The event that is logged when it has ended."""
    return f"{moment}_ends"


def _said(moment: str, work: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(work)
    def saying(*arguments: Any, **named: Any) -> Any:
        log.info(begins(moment))
        try:
            return work(*arguments, **named)
        finally:
            log.info(ends(moment))

    return saying


def _hurry() -> None:
    small = partial(view.FoldLimits, rows=FOLD_ROWS, share=0.05, bytes=FOLD_ROWS << 10)
    replaced: list[tuple[Any, str, Any]] = [
        (view, "FoldLimits", small),
        (compaction, "MEBIBYTE", COMPACTED_BYTES),
        (view, "fold", _said("base", fold.fold)),
        (Journal, "append", _said("append", Journal.append)),
        (EngineProjection, "_apply", _said("engine", vars(EngineProjection)["_apply"])),
        (Catalog, "apply", _said("catalog", Catalog.apply)),
        (History, "take", _said("history", History.take)),
        (KeywordIndex, "write", _said("index", KeywordIndex.write)),
    ]
    for owner, name, value in replaced:
        setattr(owner, name, value)


if __name__ == "__main__":
    _hurry()
    main()
