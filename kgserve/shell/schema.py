"""The labels of every store and their properties, with the engine's names of their types."""

from __future__ import annotations

from kgserve.model.fields import EDGE, ENDS, NODE

LABELS: dict[str, dict[str, str]] = {
    "Entity": {field.name: field.type.engine for field in NODE.whole},
    "RELATES_TO": {field.name: field.type.engine for field in EDGE.whole[ENDS:]},
}
