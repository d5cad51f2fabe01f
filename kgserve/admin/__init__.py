"""Administration of stores and servers: settings, backups, checks and repair, metrics."""
