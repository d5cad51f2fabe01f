"""Benches on real data. Each prints absolute figures and ratios against a baseline measured in the same run.

Where one uses the bare engine, it is the one that KGSERVE_ENGINE names.
"""

from kgserve.settings import load
from kgserve.worker import chosen

chosen.engine = load().engine
