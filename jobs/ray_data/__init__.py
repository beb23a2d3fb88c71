"""Queues as Ray Data datasets: a `Datasource` that reads a topic and a `Datasink` that writes one."""
