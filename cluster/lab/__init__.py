"""Demo, benchmarks and autoscaling experiments: programs that use a cluster, and no part of it."""
