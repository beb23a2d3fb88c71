"""The CommitLog: its files and directories, its positions, flushes, and detection of damage."""
