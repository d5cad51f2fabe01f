"""Cypher shell: reads statements from a terminal, a file or a pipe, and shows a server's answers."""
