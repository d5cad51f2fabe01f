"""Consolidation of memories: candidates, plans, applying and undoing merges, and pruning."""
