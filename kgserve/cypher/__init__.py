"""What stands between a caller's Cypher text and the engine. Pure functions; nothing here knows the engine."""
