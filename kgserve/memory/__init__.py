"""The memory feature: storing, recalling, superseding, consolidating and forgetting memories."""
