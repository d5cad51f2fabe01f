"""The labels of every store and their properties, with the engine's names of their types."""

from __future__ import annotations

LABELS: dict[str, dict[str, str]] = {
    "Entity": {
        "id": "STRING",
        "type": "STRING",
        "content": "STRING",
        "attributes": "STRING",
        "version": "INT64",
        "sequence": "INT64",
        "created_at": "TIMESTAMP",
        "updated_at": "TIMESTAMP",
        "summary": "STRING",
        "tags": "STRING[]",
        "freshness_at": "TIMESTAMP",
        "created_by": "STRING",
        "valid_from": "TIMESTAMP",
        "valid_to": "TIMESTAMP",
        "conflicts": "INT64[]",
    },
    "RELATES_TO": {
        "relation_type": "STRING",
        "weight": "DOUBLE",
        "attributes": "STRING",
        "version": "INT64",
        "sequence": "INT64",
        "ordinal": "INT64",
        "created_by": "STRING",
        "valid_from": "TIMESTAMP",
        "valid_to": "TIMESTAMP",
    },
}
