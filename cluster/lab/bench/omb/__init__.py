"""OpenMessaging Benchmark: its workload files, load and result fields."""
