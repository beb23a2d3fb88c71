"""Autoscaling: brokers that are added and removed with the load, and experiments that measure it."""
