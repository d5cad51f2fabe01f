"""SQLite catalog of a store's nodes: ids in order, counts by type and tag, and an attribute index."""
