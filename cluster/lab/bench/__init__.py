"""Benchmarks of `raymq bench`, one module per benchmark."""
