"""Cypher queries on an embedded Kùzu or Ladybug database, kept up to date from the journal."""
