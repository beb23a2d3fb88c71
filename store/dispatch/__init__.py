"""Dispatch: read confirmed log records and pass them to the sinks (consume queues, index and others)."""
