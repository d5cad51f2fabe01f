"""Cypher statements on a store: executed by the engine or the interpreter, with writes as row changes."""
