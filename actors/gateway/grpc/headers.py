"""Headers of a call: their texts, and the checks before the call begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from actors.gateway.grpc.calls import Method
from actors.gateway.grpc.messages import ENCODINGS
from actors.gateway.grpc.status import CallFailed, StatusCode

CONTENT_TYPE: Final = "application/grpc"


def check_headers(headers: Mapping[str, str], method: Method | None) -> None:
    """Raise CallFailed if the headers are not those of a call of one of the methods."""
    if not headers.get("content-type", "").startswith(CONTENT_TYPE):
        raise CallFailed(StatusCode.INTERNAL, f"the content-type must be {CONTENT_TYPE}")
    if method is None:
        path = headers.get(":path", "")[:100]
        raise CallFailed(StatusCode.UNIMPLEMENTED, f"this server does not have the method {path}")
    encoding = headers.get("grpc-encoding", "identity")
    if encoding not in ENCODINGS:
        raise CallFailed(
            StatusCode.UNIMPLEMENTED, f"grpc-encoding {encoding[:40]} is not one of {', '.join(ENCODINGS)}"
        )


def joined(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the headers as texts; the values of a repeated one are joined by commas."""
    found: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name, value = raw_name.decode(errors="replace"), raw_value.decode(errors="replace")
        found[name] = f"{found[name]},{value}" if name in found else value
    return found
