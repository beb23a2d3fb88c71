"""Coming to a Ray cluster and leaving it: what its processes need, and a head of our own."""
