"""Appending records to the CommitLog of a store."""
