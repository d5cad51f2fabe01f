"""The engine under test: the one that KGSERVE_ENGINE names, in this process and in those of its stores."""

from __future__ import annotations

from kgserve.platform.settings import EngineName, load_settings
from kgserve.projections.cypher_engine.driver import engine_selection

ENGINE: EngineName = load_settings().engine
engine_selection.selected_engine = ENGINE
