"""Autoscaler: keeps the number of elastic brokers at the load. `experiments` measures and simulates it."""
