"""MetricsEndpoint: serves `/metrics` and `/healthz` by HTTP on the event loop of a process.

Each connection serves one request. The page names topics and groups, so the endpoint listens only on the
loopback address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pydantic import Field

from actors.host.figures import Figure
from actors.host.metrics.page import CONTENT_TYPE, page
from store.logs import get_logger
from store.settings_model import SettingsModel

_log = get_logger(__name__)

HOST: Final = "127.0.0.1"
CONNECTIONS_MAX: Final = 8
HEAD_BYTES_MAX: Final = 8 * 1024
TIMEOUT_S: Final = 5.0
"""Time for a client to send its request, and to receive the response."""
_REASONS: Final = {
    200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed",
    500: "Internal Server Error", 503: "Service Unavailable",
}  # fmt: skip


class MetricsSettings(SettingsModel):
    """Settings of the metrics that all processes of a cluster have."""

    metrics_port: int = Field(default=-1, ge=-1, le=65535)
    """The port of `/metrics` (for Prometheus) and `/healthz` on the loopback address; 0 chooses a free port,
    which is in the log event `metrics_serving`; -1: none.
    """
    metrics_max_series: int = Field(default=50_000, ge=100)
    """The largest number of series on the page; it also shows how many others there are, by metric."""


class MetricsEndpoint:
    """Serves the figures of one process."""

    def __init__(
        self, settings: MetricsSettings, figures: Sequence[Figure], labels: Callable[[], Mapping[str, str]]
    ) -> None:
        """Create the endpoint; `labels` returns those that are added to all samples."""
        self._settings = settings
        self._figures = figures
        self._labels = labels
        self._server: asyncio.Server | None = None
        self._open = 0

    @property
    def port(self) -> int:
        """The port; -1 if the endpoint is disabled or not started."""
        return -1 if self._server is None else int(self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        """Listen, unless the endpoint is disabled. Raises OSError if the port is in use."""
        if self._settings.metrics_port < 0:
            return
        self._server = await asyncio.start_server(
            self._serve, HOST, self._settings.metrics_port, limit=HEAD_BYTES_MAX
        )
        _log.info("metrics_serving", host=HOST, port=self.port)

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._respond(reader, writer)
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            _log.debug("metrics_request_failed", error=repr(error))
            writer.transport.abort()
        finally:
            self._open -= 1

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            head = b""
        method, target = (*head.split(b"\r\n", 1)[0].split(b" "), b"", b"")[:2]
        status, kind, text = await self._response(method, target.split(b"?")[0])
        body = text.encode(errors="replace")
        lines = (
            f"HTTP/1.1 {status} {_REASONS[status]}",
            f"Content-Type: {kind}",
            f"Content-Length: {len(body)}",
            "Connection: close",
        )
        writer.write("\r\n".join((*lines, "", "")).encode() + (b"" if method == b"HEAD" else body))
        await writer.drain()

    async def _response(self, method: bytes, path: bytes) -> tuple[int, str, str]:
        plain = "text/plain; charset=utf-8"
        if not method or not path.startswith(b"/"):
            return 400, plain, "this is not an HTTP request, or its head is too long\n"
        if method not in (b"GET", b"HEAD"):
            return 405, plain, "only GET and HEAD are supported\n"
        if self._open > CONNECTIONS_MAX:
            return 503, plain, f"more than {CONNECTIONS_MAX} connections are open: try again later\n"
        if path == b"/healthz":
            return 200, plain, "serving\n"
        if path != b"/metrics":
            return 404, plain, "the paths are /metrics and /healthz\n"
        try:
            return 200, CONTENT_TYPE, await self._page()
        # The client gets a response, whichever figure cannot be read.
        except Exception:  # noqa: BLE001 - logged
            _log.exception("metrics_page_failed")
            return 500, plain, "a figure could not be read: see metrics_page_failed in the log\n"

    async def _page(self) -> str:
        for refresh in dict.fromkeys(each.refresh for each in self._figures if each.metric):
            if refresh is not None:
                await refresh()
        parts = []
        for part in page(self._figures, self._labels(), self._settings.metrics_max_series):
            parts.append(part)
            await asyncio.sleep(0)
        return "".join(parts)
