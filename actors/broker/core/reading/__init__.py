"""Reads of queues: pulls, held pulls (long polling), and queries for offsets and single messages."""
