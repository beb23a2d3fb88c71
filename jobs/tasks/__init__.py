"""Queues of tasks. Each module is imported by its own name, with the packages that it needs."""
