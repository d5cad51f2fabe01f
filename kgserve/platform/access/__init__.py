"""Who may do what: keys, the callers they stand for, and the record of what was refused and what was administered."""
