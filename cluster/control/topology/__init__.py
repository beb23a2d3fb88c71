"""The topology of a cluster: the typed model, and the parsers of its files."""
