"""Cluster backend on NATS JetStream."""
