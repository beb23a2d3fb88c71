"""Workarounds for single versions of RocketMQ's clients, each behind one hook."""
