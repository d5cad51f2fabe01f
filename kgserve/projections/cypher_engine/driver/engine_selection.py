"""Selection of the Cypher engine, Kùzu or Ladybug, for this process; set before its classes are imported."""

from __future__ import annotations

from kgserve.platform.settings import EngineName

selected_engine: EngineName = "kuzu"
