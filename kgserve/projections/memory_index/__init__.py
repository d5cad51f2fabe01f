"""SQLite index of a store's memories: confidence decay, hierarchy, names, relations and filtered lists."""
