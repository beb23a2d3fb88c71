"""Re-index with Spark: recreate the files derived from a store's CommitLog."""
