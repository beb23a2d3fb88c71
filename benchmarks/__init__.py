"""Benchmarks against other systems, which must be installed in addition to this project."""
