"""Benchmarks on real data. Each prints absolute figures and ratios against a baseline measured in the same run.

Benchmarks of the bare engine use the engine that KGSERVE_ENGINE names.
"""

from kgserve.platform.settings import load_settings
from kgserve.projections.cypher_engine.driver import engine_selection

engine_selection.selected_engine = load_settings().engine
