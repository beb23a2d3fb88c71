"""Commands on the processes of a cluster: up, down, restart, drain, status, logs, autoscale, broker, top."""
