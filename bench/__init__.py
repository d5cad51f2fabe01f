"""Benches on real data. Each prints absolute figures and ratios against a baseline measured in the same run."""
