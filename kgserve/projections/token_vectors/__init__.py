"""Token vectors of conversation turns, for late-interaction search."""
