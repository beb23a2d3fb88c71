"""Which nameservers, brokers and rebalancers a cluster has: the typed model, and the files it comes from."""
