"""Connections, routes and heartbeats: what every client is made of, on one asyncio loop."""
