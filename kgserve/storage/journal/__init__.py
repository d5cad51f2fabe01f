"""Journal of a store: append-only segment files, snapshots of all rows, and replay."""
