"""Embedding models: local and remote providers, and their cache."""
