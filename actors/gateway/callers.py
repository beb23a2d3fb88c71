"""Callers: the client of a call, and the requests to brokers that are sent for it.

A client with credentials signs each call, as RocketMQ's SDKs do:

    authorization   MQv2-HMAC-SHA1 Credential=<user>/…, SignedHeaders=x-mq-date-time, Signature=<hex>
    signature       HMAC-SHA1(secret key, value of the header x-mq-date-time)

The signature covers neither the request nor the address, and SDKs write their local time as UTC: without TLS
any listener on the network can repeat it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from actors.gateway.proto.definition_pb2 import Code
from actors.gateway.statuses import RpcFailed, check_length
from actors.wire.command import RemotingCommand
from actors.wire.header import CLIENT_ID_CHARS_MAX
from actors.wire.signing import ON_BEHALF_OF, ON_BEHALF_OF_SOURCE
from store.message.hosts import split_address

_CLIENT_ID: Final = "x-mq-client-id"
_ALGORITHM: Final = "MQv2-HMAC-SHA1"
_FIELD_CHARS_MAX: Final = 512


class _Header(Protocol):
    def to_ext(self) -> dict[str, str]: ...


class Caller(NamedTuple):
    """The client of a call; `user` is empty if no users are configured."""

    client_id: str
    user: str = ""
    source: str = ""
    """The IP address."""

    def request(self, code: int, header: _Header | None = None, body: bytes = b"") -> RemotingCommand:
        """Return a request for this client: the broker checks the permissions of its user."""
        ext = {} if header is None else header.to_ext()
        if self.user:
            ext[ON_BEHALF_OF], ext[ON_BEHALF_OF_SOURCE] = self.user, self.source
        return RemotingCommand(code, ext, body)


class Signature(NamedTuple):
    """User, signed text and signature (hexadecimal digits) of a call."""

    user: str
    text: str
    digits: str

    @classmethod
    def of(cls, metadata: Mapping[str, str]) -> Signature:
        """Return the signature in the headers of a call. Raises RpcFailed if it is missing."""
        algorithm, _, rest = metadata.get("authorization", "").partition(" ")
        fields = dict(field.strip().partition("=")[::2] for field in rest.split(","))
        user = fields.get("Credential", "").partition("/")[0].strip()
        text, digits = metadata.get("x-mq-date-time", ""), fields.get("Signature", "")
        if algorithm != _ALGORITHM or not user or not text or not digits:
            raise RpcFailed(
                Code.UNAUTHORIZED,
                f"the call has no {_ALGORITHM} signature and this gateway requires authentication: "
                "set access key and secret key in the client",
            )
        if max(len(user), len(text), len(digits)) > _FIELD_CHARS_MAX:
            raise RpcFailed(
                Code.UNAUTHORIZED, f"a field of the signature has more than {_FIELD_CHARS_MAX} characters"
            )
        return cls(user, text, digits)


def client_id_of(metadata: Mapping[str, str]) -> str:
    """Return the client id in the headers of a call. Raises RpcFailed if it is missing or too long."""
    client_id = metadata.get(_CLIENT_ID, "")
    if not client_id.strip():
        raise RpcFailed(Code.CLIENT_ID_REQUIRED, f"the header {_CLIENT_ID} is missing")
    check_length(client_id, CLIENT_ID_CHARS_MAX, Code.REQUEST_HEADER_FIELDS_TOO_LARGE, "client id")
    return client_id


def caller_source(peer: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the IP address of a connection's peer; an IPv4-mapped one as IPv4, and without a zone."""
    address = ipaddress.ip_address(split_address(peer)[0].partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address
