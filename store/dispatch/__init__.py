"""Dispatch: read confirmed records of the CommitLog and pass them to sinks, which derive other files from them."""
