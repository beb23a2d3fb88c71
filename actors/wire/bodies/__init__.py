"""Bodies of requests and responses, one file per subject."""
