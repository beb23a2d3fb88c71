"""The index: files that find records by key, and the service over all of them."""
