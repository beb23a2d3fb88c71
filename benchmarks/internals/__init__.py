"""Benchmarks of parts of a broker, and of the machine: `python -m benchmarks.internals --help`."""
