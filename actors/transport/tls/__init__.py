"""TLS for remoting connections: certificates, the handshake, and encryption of one connection."""
