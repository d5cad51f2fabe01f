"""Search for nodes: keyword, semantic and hybrid ranking, late interaction, and conversation turns."""
