"""Guard: refuses requests that other web pages caused, and adds the security headers to each response."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from aiohttp import web

from cluster.console.api_errors import ApiError
from cluster.control.placement import is_loopback

OWN_HEADER = "X-RayMQ-Console"
"""Header of each change. Another page cannot send it without a permission that this server never gives."""

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\[\]]+))(?::\d*)?")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def check_host_header(request: web.Request, listen_host: str) -> None:
    """Raise ApiError if a console of this machine is addressed by another name.

    A page whose name resolves to this machine (DNS rebinding) would otherwise have the same origin.
    """
    given = request.headers.get("Host", "")
    found = _HOST.fullmatch(given)
    name = found[1] or found[2] if found else ""
    if name.lower() != listen_host and not is_loopback(name.lower()):
        raise ApiError(
            421,
            f"the console was addressed as {given[:80]!r}, and it only serves this machine",
            "Open it as http://localhost:PORT/, or start it with --host.",
        )


def check_origin(request: web.Request, *, is_change: bool) -> None:
    """Raise ApiError if a page of another origin sent the request."""
    site = request.headers.get("Sec-Fetch-Site", "same-origin")
    if site not in ("same-origin", "none"):
        raise ApiError(403, f"the request is from another page: {site[:40]!r}", "Use the console's pages.")
    if not is_change:
        return
    origin = request.headers.get("Origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("Host"):
        raise ApiError(403, f"the request is from the page {origin[:80]!r}", "Use the console's pages.")
    if OWN_HEADER not in request.headers:
        raise ApiError(403, f"the header {OWN_HEADER} is missing", f"Send each change with {OWN_HEADER}: 1.")


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add the security headers to a response."""
    response.headers.update(SECURITY_HEADERS)
    response.headers["Server"] = "raymq"
