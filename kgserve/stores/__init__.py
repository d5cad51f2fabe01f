"""Open stores: write path, pool, compaction and backups."""
