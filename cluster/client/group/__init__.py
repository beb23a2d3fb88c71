"""Consumer group membership of a client: queue assignment, leases and committed offsets."""
