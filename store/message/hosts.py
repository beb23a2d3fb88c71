"""Encoded addresses (IP address and port) in records and message ids (store format, sections 1.2 and 10).

An IP address of 4 or 16 bytes and the port as a big-endian i32:

    0    4|16    8|20
    | ip | port  |
"""

import socket
from functools import lru_cache
from typing import NamedTuple

V4_BYTES = 8
V6_BYTES = 20
PORT_BYTES = 4


class Host(NamedTuple):
    """An IP address and a port."""

    ip: str
    port: int

    @property
    def packed(self) -> bytes:
        """The encoded address: 8 bytes for IPv4, 20 for IPv6. Raises ValueError if `ip` is not an address."""
        return _pack(self.ip, self.port)

    def __str__(self) -> str:
        return f"[{self.ip}]:{self.port}" if ":" in self.ip else f"{self.ip}:{self.port}"


@lru_cache(maxsize=8192)
def _pack(ip: str, port: int) -> bytes:
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    try:
        address = socket.inet_pton(family, ip)
    except OSError:
        raise ValueError(f"{ip!r} is not an IP address: resolve host names first") from None
    return address + port.to_bytes(PORT_BYTES, "big", signed=True)


@lru_cache(maxsize=8192)
def unpack_host(packed: bytes) -> Host:
    """Decode an address that `Host.packed` encoded. Raises ValueError if it is not 8 or 20 bytes long."""
    if len(packed) not in (V4_BYTES, V6_BYTES):
        raise ValueError(f"an encoded host has {V4_BYTES} or {V6_BYTES} bytes, not {len(packed)}")
    family = socket.AF_INET if len(packed) == V4_BYTES else socket.AF_INET6
    ip = socket.inet_ntop(family, packed[:-PORT_BYTES])
    return Host(ip, int.from_bytes(packed[-PORT_BYTES:], "big", signed=True))
