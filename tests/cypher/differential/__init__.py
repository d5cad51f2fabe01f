"""Differential tests of generated Cypher: an engine, run through the product, against the reference interpreter."""
