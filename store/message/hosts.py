"""Addresses: their text forms, and their encoding in records and message ids.

See docs/store-format.md#record and docs/store-format.md#message-ids.

The text form is `host:port`, or `[v6]:port` for an IPv6 address.

An IP address of 4 or 16 bytes and the port as a big-endian i32:

    0    4|16    8|20
    | ip | port  |
"""

import re
import socket
from functools import lru_cache
from typing import NamedTuple

MAX_HOST_CHARS = 253
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?", re.IGNORECASE)
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.IGNORECASE)
_PORT = re.compile("[0-9]{1,5}")
MAX_PORT = 65_535

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
        return join_address(self.ip, self.port)


def join_address(host: str, port: int) -> str:
    """Return `host:port`, or `[v6]:port` if `host` is an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str, min_port: int = 1) -> tuple[str, int]:
    """Return the host and the port of `host:port` or `[v6]:port`; the host has no brackets.

    Raises ValueError, which names the address, if its form is wrong or its host or port is invalid.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host:
        raise ValueError(f"{_cut(address)!r} does not have the form host:port")
    if not _PORT.fullmatch(port) or not min_port <= int(port) <= MAX_PORT:
        raise ValueError(f"{_cut(address)!r} is not an address host:port with a port from 1 to {MAX_PORT:,}")
    if host.startswith("[") and host.endswith("]") and ":" in host:
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{_cut(address)!r} is not an address host:port: write an IPv6 address in brackets")
    try:
        return check_host(host), int(port)
    except ValueError as error:
        raise ValueError(f"{_cut(address)!r} is not an address: {error}") from None


def check_host(host: str) -> str:
    """Return `host`, a host name or an IP address without brackets.

    Raises ValueError, which names it, if it is invalid.
    """
    if ":" in host:
        try:
            socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
        except (OSError, ValueError):
            raise ValueError(f"{_cut(host)!r} is not an IPv6 address") from None
        return host
    labels = host.removesuffix(".").split(".")
    if not host.isascii():
        raise ValueError(f"{_cut(host)!r} is not a host name: write an international name in its xn-- form")
    if len(host) > MAX_HOST_CHARS or not all(map(_LABEL.fullmatch, labels)):
        raise ValueError(
            f"{_cut(host)!r} is not a host name: each part needs 1 to 63 letters, digits or hyphens"
        )
    if _NUMBER.fullmatch(labels[-1]):
        try:
            socket.inet_pton(socket.AF_INET, host)
        except OSError:
            raise ValueError(f"{_cut(host)!r} is not an IPv4 address") from None
    return host


def _cut(text: str) -> str:
    return text if len(text) <= MAX_HOST_CHARS else f"{text[:64]}…"


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
