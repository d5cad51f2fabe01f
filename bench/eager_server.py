"""Server with continuously updated projections, which logs each step: `python -m bench.eager_server serve`.

Limits that only large stores reach are reduced. Each moment that a benchmark targets is logged at its start and end.
Everything else is as in `kgserve`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import structlog

from kgserve.__main__ import main
from kgserve.projections.catalog.node_catalog import NodeCatalog
from kgserve.projections.cypher_engine.projection import EngineFileProjection
from kgserve.projections.history.row_state_history import HistoryFile
from kgserve.projections.keyword_index import KeywordIndex
from kgserve.storage.journal.journal import Journal
from kgserve.storage.rows import base_segment_merge, current_rows
from kgserve.stores import compaction

MOMENTS = ("append", "base", "engine", "catalog", "history", "index")
FOLD_ROWS = 300
COMPACTED_BYTES = 128 << 10

log = structlog.get_logger()


def start_event(moment: str) -> str:
    """Return the event that is logged at the start of a moment."""
    return f"{moment}_begins"


def end_event(moment: str) -> str:
    """Return the event that is logged at the end of a moment."""
    return f"{moment}_ends"


def _log_moment(moment: str, work: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(work)
    def saying(*arguments: Any, **named: Any) -> Any:
        log.info(start_event(moment))
        try:
            return work(*arguments, **named)
        finally:
            log.info(end_event(moment))

    return saying


def _reduce_limits() -> None:
    small = partial(current_rows.DeltaMergeLimits, rows=FOLD_ROWS, share=0.05, bytes=FOLD_ROWS << 10)
    merge = base_segment_merge.write_merged_row_base_segment
    replaced: list[tuple[Any, str, Any]] = [
        (current_rows, "DeltaMergeLimits", small),
        (compaction, "MEBIBYTE", COMPACTED_BYTES),
        (current_rows, merge.__name__, _log_moment("base", merge)),
        (Journal, "append", _log_moment("append", Journal.append)),
        (EngineFileProjection, "_apply", _log_moment("engine", vars(EngineFileProjection)["_apply"])),
        (NodeCatalog, "apply", _log_moment("catalog", NodeCatalog.apply)),
        (HistoryFile, "take", _log_moment("history", HistoryFile.take)),
        (KeywordIndex, "write", _log_moment("index", KeywordIndex.write)),
    ]
    for owner, name, value in replaced:
        if not hasattr(owner, name):
            raise AttributeError(f"{owner} has no {name} to replace")
        setattr(owner, name, value)


if __name__ == "__main__":
    _reduce_limits()
    main()
