"""The graph feature: nodes, edges, versions, search, import and export, Cypher statements."""
