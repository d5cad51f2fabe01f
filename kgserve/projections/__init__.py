"""Projections: read-optimized files derived from a store's journal and kept up to date with it."""
