"""Bolt: the protocol of Neo4j drivers, over TCP."""
