"""Clients for special purposes: requests to the nameservers of a cluster, and blocking connections."""
