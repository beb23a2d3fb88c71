"""MetricsEndpoint: serves `/metrics` and `/healthz` by HTTP on the event loop of a process.

Each connection serves one request. `/healthz` responds whatever other peers do: over the limit, connections
without a request are closed first, then the oldest ones.

The page names topics and groups, so `raymq up` refuses an address that other machines can reach, unless there
is a token (`metrics_token_file`) or the topology is `insecure`.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from pydantic import AliasChoices, Field, field_validator

from actors.bounds import AtLimit, Bound, Keeper, Use, uses_of
from actors.host.figures import Figure, bound_figures
from actors.host.metrics.page import CONTENT_TYPE, DROPPED, page
from actors.ports import NEVER_ASKED_NS, RESERVED, Port, Ports
from actors.wire.settings_text import HostName
from store.common.bounded_dict import BoundedDict
from store.common.clock import SystemClock
from store.common.logs import get_logger
from store.common.settings_model import SettingsModel
from store.common.text_file import without_mark
from store.store_errors import StoreError

_log = get_logger(__name__)

PORT_DISTANCE: Final = 1000
"""The default port is that of the process plus this."""
AUTOSCALER_PORT: Final = 8086
"""Stands for the port of the autoscaler, which listens for requests of its metrics only."""
LAKE_PORT: Final = 8088
"""The same for a lake."""
CONNECTIONS: Final = Bound(
    "metrics_connections", RESERVED, AtLimit.CLOSE, "Connections of the port of metrics."
)
PAGES: Final = Bound("metrics_pages", 8, AtLimit.CLOSE, "Pages of metrics that are computed or sent.")
SERIES: Final = Bound("metrics_series", 50_000, AtLimit.REFUSE, "Series of the last page of metrics.")
HEAD_BYTES_MAX: Final = 8 * 1024
TIMEOUT_S: Final = 5.0
"""Time for a client to send its request, and to receive the response."""
SLICE_NS: Final = 1_000_000
"""Time after which the computation of a page lets other tasks run."""
OFF: Final = -1
PLAIN: Final = "text/plain; charset=utf-8"
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_OF_PROCESS: Final = ("cluster", "node_type", "node_id", "le")
_REASONS: Final = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed",
    500: "Internal Server Error",
}  # fmt: skip


class MetricsSettings(SettingsModel):
    """Settings of the metrics that all processes of a cluster have."""

    metrics_port: int | None = Field(
        default=None,
        ge=OFF,
        le=65535,
        validation_alias=AliasChoices("metrics_port", "metricsPromExporterPort"),
    )
    """The port of `/metrics` (for Prometheus) and `/healthz`; default: `listen_port` + 1000 (9086 for the
    autoscaler, 9088 for a lake), or no metrics if that port is in use. 0, and the default of a process with
    `listen_port` 0, is a free port, which is in the log event `metrics_serving`. -1: no metrics.
    """
    metrics_host: HostName = Field(
        default="127.0.0.1", validation_alias=AliasChoices("metrics_host", "metricsPromExporterHost")
    )
    """The address of the metrics. One that other machines can reach needs `metrics_token_file`, or `insecure`
    in the topology, because the page names topics and groups.
    """
    metrics_token_file: Path | None = None
    """Absolute path of a file with the token that `/metrics` requires (`Authorization: Bearer TOKEN`)."""
    metrics_labels: str = Field(default="", validation_alias=AliasChoices("metrics_labels", "metricsLabel"))
    """Labels that are added to all metrics, as `name:value,…`."""
    metrics_max_series: int = Field(default=SERIES.limit, ge=100)
    """The largest number of series on the page; it also shows how many others there are, by metric."""

    @field_validator("metrics_labels")
    @classmethod
    def _check_labels(cls, value: str) -> str:
        for name in labels_of(value):
            if not _LABEL.fullmatch(name) or name in _OF_PROCESS:
                raise ValueError(
                    f"{name[:100]!r} is no name of a label: use letters, digits and _, and none of "
                    f"{', '.join(_OF_PROCESS)}, as in zone:eu-1,team:orders"
                )
        return value


def labels_of(text: str) -> dict[str, str]:
    """Return the labels of `metrics_labels`."""
    pairs = (pair.partition(":") for pair in text.split(",") if pair.strip())
    return {name.strip(): value.strip() for name, _, value in pairs}


def default_port(listen_port: int) -> int:
    """Return the port of the metrics of a process that listens on a port; 0: any free one."""
    return listen_port + PORT_DISTANCE if 0 < listen_port <= 65_535 - PORT_DISTANCE else 0


class _Visit:
    """One connection of a client, which adds itself to `visits`."""

    def __init__(self, transport: asyncio.WriteTransport, now_ns: int, visits: set[_Visit]) -> None:
        self.has_request = False
        self._transport = transport
        self._visits = visits
        visits.add(self)
        self._since_ns = now_ns

    def idle_ns(self, now_ns: int) -> int:
        """Return its age; those without a request count as older (see `actors.ports.Guest`)."""
        return now_ns - self._since_ns + (0 if self.has_request else NEVER_ASKED_NS)

    def give_way(self) -> None:
        """Close the connection immediately."""
        self._visits.discard(self)
        self._transport.abort()


class MetricsEndpoint:
    """Serves the figures of one process."""

    def __init__(
        self,
        settings: MetricsSettings,
        figures: Sequence[Figure],
        labels: Callable[[], Mapping[str, str]],
        ports: Ports | None = None,
        keepers: Sequence[Keeper] = (),
    ) -> None:
        """Create the endpoint.

        Args:
            settings: address, token and labels.
            figures: those of the process, without its bounds.
            labels: returns the labels that are added to all samples.
            ports: the ports of the process; None: it has no other one.
            keepers: the objects whose bounds are shown, besides those of the ports.
        """
        self._settings = settings
        self._labels = labels
        self._token = b""
        self._ports = ports or Ports(SystemClock())
        self._port: Port | None = None
        self._visits: set[_Visit] = set()
        # A page may have megabytes, and its client may not read it.
        self._pages = BoundedDict[_Visit, None](PAGES.limit, lambda oldest, _: oldest.give_way())
        self._series: int | None = None
        """Number of series of the last page."""
        self.figures = (*bound_figures(uses_of((*keepers, self._ports, self))), *figures)
        """What is on the page."""

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return (
            CONNECTIONS.use(lambda: len(self._visits)),
            PAGES.use(lambda: len(self._pages)),
            SERIES.use(lambda: self._series, lambda: self._settings.metrics_max_series),
        )

    @property
    def port(self) -> int:
        """The port; -1 if the endpoint is disabled or not started."""
        return OFF if self._port is None else self._port.number

    async def start(self, listen_port: int) -> None:
        """Listen, unless the endpoint is disabled.

        Args:
            listen_port: the port of the process, for the default port.

        Raises:
            OSError: the port of the settings is in use. Only a warning is logged if the default port is.
            StoreError: the token file cannot be read or is empty.
        """
        settings = self._settings
        if settings.metrics_port == OFF:
            return
        if settings.metrics_token_file is not None:
            self._token = _read_token(settings.metrics_token_file)
        is_default, port = settings.metrics_port is None, settings.metrics_port or 0
        if is_default:
            port = default_port(listen_port)
        try:
            self._port = await self._ports.listen(
                settings.metrics_host, port, self._make, lambda: self._visits, CONNECTIONS.limit,
                is_reserved=True,
            )  # fmt: skip
        except OSError as error:
            if not is_default:
                raise OSError(
                    error.errno,
                    f"metrics_port {port} cannot be used on {settings.metrics_host}: "
                    f"{os.strerror(error.errno or 0)}: choose another one, 0 for a free one, or -1 for none",
                ) from error
            remedy = "set metrics_port to another port, or to -1"
            _log.warning("metrics_port_in_use", port=port, error=str(error), remedy=remedy)
        else:
            _log.info("metrics_serving", host=settings.metrics_host, port=self.port)

    async def stop(self) -> None:
        """Stop listening."""
        if self._port is not None:
            self._port.close()
            self._port = None

    def _make(self) -> asyncio.BaseProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(limit=HEAD_BYTES_MAX), self._serve)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visit = _Visit(writer.transport, self._ports.now_ns(), self._visits)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._respond(reader, writer, visit)
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            _log.debug("metrics_request_failed", error=repr(error))
            writer.transport.abort()
        finally:
            self._visits.discard(visit)
            self._pages.pop(visit, None)

    async def _respond(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, visit: _Visit
    ) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            head = b""
        visit.has_request = True
        first, *fields = head.split(b"\r\n")
        method, target = (*first.split(b" "), b"", b"")[:2]
        path = target.split(b"?")[0]
        if path == b"/metrics" and not self._is_authorized(fields):
            status, kind, text = 401, PLAIN, "/metrics needs the token of metrics_token_file\n"
        else:
            status, kind, text = await self._response(method, path, visit)
        body = text.encode(errors="replace")
        lines = (
            f"HTTP/1.1 {status} {_REASONS[status]}",
            f"Content-Type: {kind}",
            f"Content-Length: {len(body)}",
            "Connection: close",
            *(("WWW-Authenticate: Bearer",) if status == 401 else ()),
        )
        writer.write("\r\n".join((*lines, "", "")).encode() + (b"" if method == b"HEAD" else body))
        await writer.drain()

    def _is_authorized(self, fields: Sequence[bytes]) -> bool:
        """Return True if no token is required, or if the header fields have it."""
        if not self._token:
            return True
        for field in fields:
            name, _, value = field.partition(b":")
            scheme, _, token = value.strip().partition(b" ")
            if (name.strip().lower(), scheme.lower()) == (b"authorization", b"bearer"):
                return hmac.compare_digest(token.strip(), self._token)
        return False

    async def _response(self, method: bytes, path: bytes, visit: _Visit) -> tuple[int, str, str]:
        if not method or not path.startswith(b"/"):
            return 400, PLAIN, "this is not an HTTP request, or its head is too long\n"
        if method not in (b"GET", b"HEAD"):
            return 405, PLAIN, "only GET and HEAD are supported\n"
        if path == b"/healthz":
            return 200, PLAIN, "serving\n"
        if path != b"/metrics":
            return 404, PLAIN, "the paths are /metrics and /healthz\n"
        self._pages[visit] = None
        try:
            return 200, CONTENT_TYPE, await self._page()
        # The client gets a response, whichever figure cannot be read.
        except Exception:  # noqa: BLE001 - logged
            _log.exception("metrics_page_failed")
            return 500, PLAIN, "a figure could not be read: see metrics_page_failed in the log\n"

    async def _page(self) -> str:
        for refresh in dict.fromkeys(each.refresh for each in self.figures if each.metric):
            if refresh is not None:
                await refresh()
        labels = {**self._labels(), **labels_of(self._settings.metrics_labels)}
        parts, series, begin_ns = [], 0, time.perf_counter_ns()
        for part in page(self.figures, labels, self._settings.metrics_max_series):
            parts.append(part)
            series += 0 if part.startswith(("#", DROPPED)) else part.count("\n")
            if time.perf_counter_ns() - begin_ns >= SLICE_NS:
                await asyncio.sleep(0)
                begin_ns = time.perf_counter_ns()
        self._series = series
        return "".join(parts)


def _read_token(path: Path) -> bytes:
    try:
        token = without_mark(path.read_bytes()).strip()
    except OSError as error:
        raise StoreError(f"metrics_token_file {path} cannot be read: {error.strerror}") from error
    if not token or len(token.split()) != 1:
        raise StoreError(f"metrics_token_file {path} must contain one token without spaces")
    return token
