"""RayMQ's processes: each is a thin Ray actor around a plain Python service."""
