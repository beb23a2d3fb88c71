"""The CommitLog: its files, directories and positions, flushes, and the detection of damage."""
