"""Connectors to external indexes that follow the contents of stores; their interfaces are in `kgserve.syncing`."""
