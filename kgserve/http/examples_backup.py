"""The examples of the API description that are about backups."""

from __future__ import annotations

from typing import Any

from kgserve.model.stores import BackupAnswer, RestoreBackupAnswer, RestoredStore, StoreBackupAnswer

_DIGEST = "3f1d0c5a9be84276a2b7c6d1e0f94853"

BACKUP: dict[str, Any] = {"to": "nightly", "keep": 4}
BACKUP_SOME: dict[str, Any] = {"to": "nightly", "stores": ["project"]}
RESTORE: dict[str, Any] = {"from": "nightly", "store": "project", "as": "project-before", "until": "41"}
STORE_BACKED_UP = StoreBackupAnswer(
    store="project",
    sequence=42,
    first=0,
    since="2025-07-15T12:00:00.000000Z",
    taken_at="2025-07-16T03:00:00.250000Z",
    digest=_DIGEST,
    nodes=2,
    edges=1,
    new_base="",
    bytes_copied=612,
    bytes_total=25_704,
    bases=1,
    took_ms=6.1,
)
BACKED_UP = BackupAnswer(folder="nightly", stores=[STORE_BACKED_UP], failed=[], bytes_copied=612)
RESTORED = RestoreBackupAnswer(
    stores=[
        RestoredStore(
            store="project-before", source="project", sequence=41, digest=_DIGEST, nodes=2, edges=1, took_ms=84.2
        )
    ]
)
