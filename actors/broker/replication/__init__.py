"""Replication: a master sends its CommitLog to slaves, as RocketMQ's brokers do."""
