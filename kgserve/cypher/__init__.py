"""Validation and rewriting of callers' Cypher texts before they reach the engine.

Pure functions, independent of the engine.
"""
