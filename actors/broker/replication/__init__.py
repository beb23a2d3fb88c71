"""Replication of brokers: masters that send their CommitLog to slaves, and Raft groups."""
