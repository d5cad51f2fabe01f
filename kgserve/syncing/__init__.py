"""What others are told of the contents of stores, so that an index of theirs can follow, and what they must be."""

from kgserve.syncing.protocol import BatchSyncer, ContentChange, ForgetfulSyncer, SyncBatch, VectorSyncer

__all__ = ["BatchSyncer", "ContentChange", "ForgetfulSyncer", "SyncBatch", "VectorSyncer"]
