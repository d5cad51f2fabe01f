"""Embedding models: local and remote providers, and the cache of their vectors."""
