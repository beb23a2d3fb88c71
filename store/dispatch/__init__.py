"""Dispatch: pass confirmed records of the CommitLog to sinks, which write consume queues and index."""
