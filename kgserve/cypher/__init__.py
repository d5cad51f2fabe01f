"""Cypher: validation and rewriting of statements for the engine, and an interpreter of openCypher.

Pure functions, independent of the engine.
"""
