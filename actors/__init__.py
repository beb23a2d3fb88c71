"""The processes: each a thin Ray shell around a plain Python service."""
