"""The bridge between an editor and the server: MCP over stdin and stdout here, streamable HTTP there.

Every editor starts a bridge of its own, and all of them use one server, because one process alone may have a data
folder. Standard library only: a bridge connects in a tenth of the time that importing the MCP library would take.
"""
