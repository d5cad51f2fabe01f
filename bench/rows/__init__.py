"""Reads, writes, imports and statements over HTTP beside an SQLite of the same rows: `python -m bench.rows`."""
