"""Benches on real data. Each prints absolute figures and ratios against a baseline measured in the same run.

Where one uses the bare engine, it is the one that KGSERVE_ENGINE names.
"""

from kgserve.platform.settings import load
from kgserve.projections.cypher_engine.driver import chosen

chosen.engine = load().engine
