"""The log: its files, where they lie, how far it is written, and where it is damaged."""
