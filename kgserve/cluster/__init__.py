"""Several nodes: ownership of stores, replicated journals, read replicas, proxying."""
