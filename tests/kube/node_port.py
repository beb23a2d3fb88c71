"""A port of a node that leads to a Service, as kube-proxy makes it.

`python -m tests.kube.node_port PORT HOST PORT`
"""

from __future__ import annotations

import asyncio
import contextlib
import sys


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def main(port: int, host: str, target: int) -> None:
    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            ends = await asyncio.wait_for(asyncio.open_connection(host, target), 5)
        except OSError:
            writer.close()
            return
        await asyncio.gather(copy(reader, ends[1]), copy(ends[0], writer))

    server = await asyncio.start_server(forward, "0.0.0.0", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
