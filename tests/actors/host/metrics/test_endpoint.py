"""The endpoint of metrics: its paths, and clients that send no valid HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from actors.host.figures import Figure, Kind
from actors.host.metrics.endpoint import CONNECTIONS_MAX, HEAD_BYTES_MAX, MetricsEndpoint, MetricsSettings
from tests.actors.host.metrics.scrapes import sent
from tests.eventually import LIMIT_S

FIGURES = (Figure("held", Kind.GAUGE, "", lambda: 3, "Held pulls.", metric="raymq_held"),)


def with_endpoint(story: Callable[[int], Awaitable[None]], figures: tuple[Figure, ...] = FIGURES) -> None:
    async def scenario() -> None:
        endpoint = MetricsEndpoint(MetricsSettings(metrics_port=0), figures, lambda: {"cluster": "C"})
        await endpoint.start()
        try:
            await asyncio.wait_for(story(endpoint.port), LIMIT_S)
        finally:
            await endpoint.stop()

    uvloop.run(scenario())


def test_metrics_and_health_are_served() -> None:
    async def story(port: int) -> None:
        head, _, body = (await sent(port, b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n")).partition(
            b"\r\n\r\n"
        )
        assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4")
        assert b'raymq_held{cluster="C"} 3\n' in body
        assert f"Content-Length: {len(body)}".encode() in head
        assert (await sent(port, b"GET /healthz HTTP/1.1\r\n\r\n")).endswith(b"\r\n\r\nserving\n")
        assert (await sent(port, b"HEAD /healthz HTTP/1.1\r\n\r\n")).endswith(b"\r\n\r\n")

    with_endpoint(story)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"GET /metrics/../etc HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"\x16\x03\x01\x00\xee\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"a" * 2 * HEAD_BYTES_MAX + b"\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
    ],
)
def test_other_requests_are_refused(request_bytes: bytes, status: int) -> None:
    async def story(port: int) -> None:
        assert (await sent(port, request_bytes)).startswith(f"HTTP/1.1 {status} ".encode())
        assert b"raymq_held" in await sent(port, b"GET /metrics HTTP/1.1\r\n\r\n")

    with_endpoint(story)


def test_silent_connections_do_not_exceed_their_limit() -> None:
    async def story(port: int) -> None:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS_MAX)]
        assert b" 503 " in await sent(port, b"GET /metrics HTTP/1.1\r\n\r\n")
        for _, writer in silent:
            writer.close()

    with_endpoint(story)


def test_figure_that_fails_is_reported_as_an_error() -> None:
    def fail() -> int:
        raise ValueError("broken")

    async def story(port: int) -> None:
        assert b" 500 " in await sent(port, b"GET /metrics HTTP/1.1\r\n\r\n")
        assert b"serving" in await sent(port, b"GET /healthz HTTP/1.1\r\n\r\n")

    with_endpoint(story, (Figure("bad", Kind.GAUGE, "", fail, "Fails.", metric="raymq_bad"),))


def test_disabled_endpoint_does_not_listen() -> None:
    async def story() -> None:
        endpoint = MetricsEndpoint(MetricsSettings(metrics_port=-1), FIGURES, dict)
        await endpoint.start()
        assert endpoint.port == -1
        await endpoint.stop()

    uvloop.run(story())
