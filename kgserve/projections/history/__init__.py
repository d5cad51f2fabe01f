"""History of a store: every state that its rows have had, in SQLite, with checksums and repair."""
