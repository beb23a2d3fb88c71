"""Files created ahead of need, deleted topics, checkpoints and retention."""
