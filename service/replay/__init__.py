"""Shows what `kvcache.replay` found out: as a table, a JSON document, a picture."""
