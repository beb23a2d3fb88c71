"""Connections that carry the protocol: sockets, turns of the event loop, client, server and TLS."""
