"""The page `/metrics` of a process, for Prometheus."""
