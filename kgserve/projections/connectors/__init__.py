"""Connectors: indexes elsewhere that follow the contents of stores; what they must offer is in `kgserve.syncing`."""
