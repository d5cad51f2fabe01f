"""Server side of the Cypher engine: handles, sessions, engine processes and their protocol."""
