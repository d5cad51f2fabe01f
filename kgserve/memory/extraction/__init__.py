"""Extraction of facts from memories by a language model: the queue, the validated writes, and marks."""
