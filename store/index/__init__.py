"""The index: files that map message keys to CommitLog offsets, and the service that manages these files."""
