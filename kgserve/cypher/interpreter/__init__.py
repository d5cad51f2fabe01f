"""Interpreter of openCypher over the rows of a store."""
