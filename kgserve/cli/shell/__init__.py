"""The Cypher shell: statements from a terminal, a file or a pipe, sent to a server; its answers, shown."""
