"""Generated Cypher, put to an engine through the product's own path and compared with the reference interpreter."""
