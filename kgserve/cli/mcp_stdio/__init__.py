"""Stdio bridge between an editor and the server: MCP over stdin and stdout, forwarded as streamable HTTP.

Each editor starts its own bridge, and all bridges share one server, because only one process can open a data folder.
The package uses the standard library only, which keeps the bridge's startup fast.
"""
