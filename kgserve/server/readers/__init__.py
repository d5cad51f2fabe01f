"""Reader processes: child processes of the server that answer reads of current rows on further cores."""
