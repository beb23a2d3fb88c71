"""Access control of a broker: its users, their policies, and the authentication of requests."""
