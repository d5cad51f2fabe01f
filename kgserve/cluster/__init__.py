"""Clusters of several nodes: store ownership, replicated journals, read replicas and request forwarding."""
