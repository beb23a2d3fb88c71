"""The index: files that map message keys to CommitLog offsets, and the service over all of them."""
