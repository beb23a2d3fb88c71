"""Grafana board and Prometheus alerts for a cluster; `python -m cluster.monitoring` writes their files."""
