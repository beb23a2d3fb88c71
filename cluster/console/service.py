"""ConsoleService: the web console, started and stopped as a whole. Builds its parts."""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from actors.host.descriptors import reserve_descriptors
from actors.host.figures import Figure, Kind
from actors.host.figures import Sample as Value
from actors.host.metrics.endpoint import MetricsEndpoint
from actors.ports import Port, Ports
from cluster.client import Admin
from cluster.client.config import ClientConfig
from cluster.console.access import ConsoleAccess
from cluster.console.api import BODY_BYTES_MAX, Api
from cluster.console.changes import ChangeLog
from cluster.console.connections import CONNECTIONS, Connections
from cluster.console.console_settings import ConsoleSettings
from cluster.console.guard import add_headers
from cluster.console.resources.access import AccessResources
from cluster.console.resources.brokers import BrokerResources
from cluster.console.resources.dead_letters import DeadLetterResources
from cluster.console.resources.groups import GroupResources
from cluster.console.resources.lakes import FindLakes, LakeResources
from cluster.console.resources.messages import MessageResources
from cluster.console.resources.overview import OverviewResources
from cluster.console.resources.topics import TopicResources
from cluster.console.rights import Rights
from cluster.console.routes import routes_of
from cluster.console.sampler import Sampler
from cluster.console.static_files import StaticFiles
from store.common.clock import Clock, SystemClock
from store.common.logs import get_logger
from store.message.hosts import join_address
from store.store_errors import StoreError

_log = get_logger(__name__)

SHUTDOWN_S = 2.0
ADDRESS_BYTES_MAX = 256 * 1024
"""Longest address of a request: a search may have a long expression, which is then refused by its length."""


class HttpLog(logging.LoggerAdapter[logging.Logger]):
    """The log of the HTTP server: a request that is no valid HTTP is one line, not a traceback."""

    def exception(self, msg: object, *args: object, exc_info: Any = True, **more: Any) -> None:
        """Log an error of the server or of a client."""
        if isinstance(exc_info, HttpProcessingError):
            _log.info("console_request_invalid", status=exc_info.code, error=exc_info.message[:200])
        else:
            super().exception(msg, *args, exc_info=exc_info, **more)


class ConsoleRefused(Exception):
    """The console cannot start: the message has the cause and the remedy."""


class ConsoleService:
    """The web console of one cluster.

    The environment variable RAYMQ_CREDENTIALS names the user that takes the samples. Requests act as the user
    that has logged in, or unsigned if the brokers accept every client.
    """

    def __init__(self, settings: ConsoleSettings, clock: Clock, lakes: FindLakes | None = None) -> None:
        self.settings = settings
        self._nameservers = ";".join(settings.nameservers)
        self._admin = Admin(config=ClientConfig(nameservers=self._nameservers))
        rights = Rights(self._admin)
        self._access = ConsoleAccess(self._nameservers, rights, clock, always=settings.login)
        self.sampler = Sampler(self._admin, clock)
        self.changes = ChangeLog(clock)
        messages = MessageResources(clock, settings.bodies)
        self.routes = routes_of(
            OverviewResources(self.sampler, self.changes, rights, clock),
            TopicResources(self.sampler, rights, clock),
            GroupResources(self.sampler, rights, clock),
            messages,
            DeadLetterResources(settings.bodies),
            BrokerResources(clock),
            LakeResources(lakes, rights),
            AccessResources(),
        )
        self._api = Api(self.routes, self._access, self.changes, settings)
        self._responses = Counter[int]()
        self._ports = Ports(clock)
        self._port: Port | None = None
        self._connections = Connections(self._ports, settings.request_timeout_ms)
        keepers = (self._connections, self._access, self._api, messages, self.sampler)
        self.metrics = MetricsEndpoint(settings, self._figures(), self._labels, self._ports, keepers)
        self._runner: web.AppRunner | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def address(self) -> str:
        """The URL of the console."""
        scheme = "http" if self.settings.tls_certificate is None else "https"
        assert self._port is not None
        host, port = self._port.listener.getsockname()[:2]
        return f"{scheme}://{join_address(host, port)}/"

    async def start(self) -> None:
        """Listen, and start to take samples. Raises ConsoleRefused; OSError if `metrics_port` is in use."""
        settings = self.settings
        middlewares = [self._connections.note, self._api.errors]
        app = web.Application(middlewares=middlewares, client_max_size=BODY_BYTES_MAX)
        app.add_routes([*self._api.handlers(), *StaticFiles().handlers()])
        app.on_response_prepare.extend((add_headers, self._count))
        self._runner = web.AppRunner(
            app,
            access_log=None,
            shutdown_timeout=SHUTDOWN_S,
            max_line_size=ADDRESS_BYTES_MAX,
            auto_decompress=False,
            logger=HttpLog(logging.getLogger(__name__)),
        )
        await self._runner.setup()
        try:
            reserve_descriptors(CONNECTIONS.limit)
            server = self._connections.server = self._runner.server
            assert server is not None
            self._port = await self._ports.listen(
                settings.listen_host, settings.listen_port, server, self._connections.guests,
                CONNECTIONS.limit, tls=_tls_of(settings),
            )  # fmt: skip
        except StoreError as error:
            await self._runner.cleanup()
            raise ConsoleRefused(str(error)) from error
        except OSError as error:
            await self._runner.cleanup()
            raise ConsoleRefused(
                f"cannot listen on {settings.listen_host}:{settings.listen_port}: {error.strerror or error}; "
                "choose another port with --port (`raymq dev`: --console-port)"
            ) from error
        await self.metrics.start(settings.listen_port)
        await asyncio.to_thread(self._access.probe)
        self._tasks = [
            asyncio.create_task(self._sample()),
            asyncio.create_task(self._connections.close_late_ones()),
        ]
        _log.info("console_serving", address=self.address)

    async def stop(self) -> None:
        """Stop listening, and close all connections."""
        await self.metrics.stop()
        for task in self._tasks:
            task.cancel()
        if self._port is not None:
            self._port.close()
        if self._runner is not None:
            await self._runner.cleanup()
        self._api.close()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._access.close)
        await loop.run_in_executor(None, self._admin.close)

    async def _count(self, _request: web.Request, response: web.StreamResponse) -> None:
        self._responses[response.status] += 1

    def _labels(self) -> dict[str, str]:
        return {"node_type": "console", "node_id": self.address.split("/")[2]}

    def _figures(self) -> list[Figure]:
        def responses() -> list[Value]:
            return [Value((str(status),), number) for status, number in self._responses.items()]

        def figure(name: str, kind: Kind, value: Callable[[], Any], text: str, **more: Any) -> Figure:
            unit = "s" if name.endswith("_seconds") else ""
            return Figure(name, kind, unit, value, text, **more, metric=f"raymq_console_{name}")

        api, access, sampler, gauge, count = self._api, self._access, self.sampler, Kind.GAUGE, Kind.COUNTER
        return [
            figure("responses_total", count, responses, "HTTP responses by status.", labels=("status",)),
            figure("waiting_requests", gauge, lambda: api.waiting, "Requests that run or wait for a thread."),
            figure("sessions", gauge, lambda: access.sessions, "Logged-in users."),
            figure("samples_total", count, lambda: sampler.samples, "Samples of the cluster."),
            figure("sample_problems", gauge, lambda: len(sampler.last.problems), "What it could not read."),
            figure("sample_seconds", gauge, lambda: sampler.duration_ns / 1e9, "Time of the last sample."),
        ]

    async def _sample(self) -> None:
        while True:
            pause_ms = 0
            try:
                pause_ms = await asyncio.to_thread(self.sampler.look)
                await asyncio.to_thread(self._access.probe)
            # The pages show that the last sample is old; the next one may succeed.
            except Exception:  # noqa: BLE001 - logged
                _log.exception("console_sample_failed")
            await asyncio.sleep(max(self.settings.sample_interval_ms, pause_ms) / 1000)


def _tls_of(settings: ConsoleSettings) -> ssl.SSLContext | None:
    """Return the context of HTTPS, or None without a certificate. Raises ConsoleRefused."""
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ConsoleRefused(
            f"--tls-certificate {settings.tls_certificate}, --tls-key {settings.tls_key}: {error}; "
            "give PEM files that belong together"
        ) from error
    return context


async def run(settings: ConsoleSettings, on_address: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; call `on_address` with the URL. Raises ConsoleRefused."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    service = ConsoleService(settings, SystemClock())
    try:
        await service.start()
        on_address(service.address)
        await stopped.wait()
    finally:
        await service.stop()
