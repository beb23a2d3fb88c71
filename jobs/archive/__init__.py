"""Archives: a topic exported to a directory of Parquet files, and imported from it."""
