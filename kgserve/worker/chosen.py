"""Which engine this process runs. To be said before `kgserve.worker.binding` is first imported."""

from __future__ import annotations

from kgserve.settings import EngineName

engine: EngineName = "kuzu"
