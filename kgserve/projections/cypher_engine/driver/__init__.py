"""Driver of the embedded Cypher engine: code that runs in engine processes and imports Kùzu or Ladybug."""
