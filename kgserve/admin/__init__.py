"""Administration: stores as wholes, backups, checks and repair, metrics."""
