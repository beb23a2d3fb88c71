"""Nodes for Ray's autoscaler on one machine: a Ray head, and a provider that starts each node as a raylet."""
