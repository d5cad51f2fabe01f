"""Links of a store, which are edges into other stores: SQLite index and its projection."""
