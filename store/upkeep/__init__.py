"""Background maintenance of a store: preallocated files, deleted topics, checkpoints and retention."""
