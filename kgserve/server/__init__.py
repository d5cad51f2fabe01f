"""The server: HTTP, MCP and the composition of a running process."""
