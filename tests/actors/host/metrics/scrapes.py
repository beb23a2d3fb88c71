"""A client that sends raw HTTP to the endpoint of metrics."""

import asyncio


async def sent(port: int, request: bytes) -> bytes:
    """Return all bytes of the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    response = await reader.read()
    writer.close()
    return response
