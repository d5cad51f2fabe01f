"""Projections: what is derived from the journal of a store and kept in step with it."""
