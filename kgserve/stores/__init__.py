"""Open stores: the write path, the pool, compaction, backups."""
