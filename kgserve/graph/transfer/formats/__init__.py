"""Streaming converters between the lines of the exchange format and other file formats."""
