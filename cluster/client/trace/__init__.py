"""Message traces in RocketMQ's format: which producer sent a message, and which consumers consumed it."""
