"""Replication of stores to a target: a folder or object storage, from which stores are restored and followed."""
