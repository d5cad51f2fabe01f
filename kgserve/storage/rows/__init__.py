"""Current rows of a store: base segment, delta, and the reads and traversals of both."""
