"""Autoscaling: rules, decisions and experiments for clusters whose brokers come and go with the load."""
