"""Vector indexes of current and past texts."""
