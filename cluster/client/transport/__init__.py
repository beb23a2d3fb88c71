"""Connections, routes and heartbeats: the parts that all clients share, on one asyncio event loop."""
