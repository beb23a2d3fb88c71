"""The endpoint of metrics: its paths, and clients that send no valid HTTP."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import uvloop
from pydantic import ValidationError

from actors.host.figures import Figure, Kind, Sample
from actors.host.metrics import endpoint
from actors.host.metrics.endpoint import (
    CONNECTIONS,
    HEAD_BYTES_MAX,
    PORT_DISTANCE,
    MetricsEndpoint,
    MetricsSettings,
    default_port,
)
from store.store_errors import StoreError
from tests.actors.host.metrics.scrapes import sent
from tests.eventually import LIMIT_S

FIGURES = (Figure("held", Kind.GAUGE, "", lambda: 3, "Held pulls.", metric="raymq_held"),)


ON_FREE_PORT = MetricsSettings(metrics_port=0)


def with_endpoint(
    story: Callable[[int], Awaitable[None]],
    figures: tuple[Figure, ...] = FIGURES,
    settings: MetricsSettings = ON_FREE_PORT,
) -> None:
    async def scenario() -> None:
        endpoint = MetricsEndpoint(settings, figures, lambda: {"cluster": "C"})
        await endpoint.start(0)
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


@pytest.mark.parametrize("path", [b"/healthz", b"/metrics"])
@pytest.mark.parametrize("begin", [b"", b"GET /he", b"GET /metrics HTTP/1.1\r\n"])
def test_silent_connections_give_their_place_to_requests(path: bytes, begin: bytes) -> None:
    async def story(port: int) -> None:
        silent = []
        for _ in range(CONNECTIONS.limit + 10):
            silent.append(await asyncio.open_connection("127.0.0.1", port))
            silent[-1][1].write(begin)
            if len(silent) % 10 == 0:
                assert b" 200 OK" in await sent(port, b"GET %s HTTP/1.1\r\n\r\n" % path)
        assert await silent[0][0].read() == b""  # the oldest ones were closed
        assert b" 200 OK" in await sent(port, b"GET %s HTTP/1.1\r\n\r\n" % path)
        for _, writer in silent:
            writer.close()

    with_endpoint(story)


def test_page_that_is_not_read_gives_its_place_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "PAGES", replace(endpoint.PAGES, limit=2))
    padding = "x" * 2_000  # more than the kernel buffers
    long = Figure("long", Kind.GAUGE, "", lambda: (Sample((f"{n}{padding}",), n) for n in range(8_000)), "",
                  ("label",), metric="raymq_long")  # fmt: skip
    end = b"} 7999\n"

    async def story(port: int) -> None:
        unread = [await asyncio.open_connection("127.0.0.1", port, limit=1024) for _ in range(2)]
        for _, writer in unread:
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert all([(await reader.readline()).endswith(b"200 OK\r\n") for reader, _ in unread])
        assert (await sent(port, b"GET /healthz HTTP/1.1\r\n\r\n")).endswith(b"serving\n")
        assert end in await sent(port, b"GET /metrics HTTP/1.1\r\n\r\n")
        rests = await asyncio.gather(*(reader.read() for reader, _ in unread), return_exceptions=True)
        assert sum(isinstance(each, bytes) and end in each for each in rests) == 1
        for _, writer in unread:
            writer.transport.abort()

    with_endpoint(story, (long,))


def test_series_over_the_limit_are_dropped_and_the_bounds_are_shown() -> None:
    many = Figure("many", Kind.GAUGE, "", lambda: (Sample((f"{n}",), n) for n in range(200)), "",
                  ("label",), metric="raymq_many")  # fmt: skip

    async def story(port: int) -> None:
        used = b'raymq_bound_used{cluster="C",bound="metrics_series"} '
        assert used not in await sent(port, b"GET /metrics HTTP/1.1\r\n\r\n")  # nothing is known yet
        text = await sent(port, b"GET /metrics HTTP/1.1\r\n\r\n")
        assert used + b"100\n" in text
        assert b'raymq_metrics_dropped_series{cluster="C",metric="raymq_many"}' in text

    with_endpoint(story, (many,), MetricsSettings(metrics_port=0, metrics_max_series=100))


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
        await endpoint.start(0)
        assert endpoint.port == -1
        await endpoint.stop()

    uvloop.run(story())


@pytest.mark.parametrize(
    ("field", "status"),
    [
        (b"", 401),
        (b"Authorization: Bearer wrong\r\n", 401),
        (b"Authorization: Basic secret\r\n", 401),
        (b"Authorization: Bearer secretx\r\n", 401),
        (b"authorization: bearer secret\r\n", 200),
        (b"Host: a\r\nAuthorization:  Bearer secret \r\n", 200),
    ],
)
def test_page_needs_the_token_of_the_file(tmp_path: Path, field: bytes, status: int) -> None:
    path = tmp_path / "token"
    path.write_text("secret\n")

    async def story(port: int) -> None:
        response = await sent(port, b"GET /metrics HTTP/1.1\r\n" + field + b"\r\n")
        assert response.startswith(f"HTTP/1.1 {status} ".encode())
        assert (b"raymq_held" in response) == (status == 200)
        assert (await sent(port, b"GET /healthz HTTP/1.1\r\n\r\n")).endswith(b"serving\n")

    with_endpoint(story, settings=MetricsSettings(metrics_port=0, metrics_token_file=path))


@pytest.mark.parametrize("content", [None, "", " \n", "two words"])
def test_invalid_token_file_prevents_the_start(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)

    async def story() -> None:
        settings = MetricsSettings(metrics_port=0, metrics_token_file=path)
        with pytest.raises(StoreError, match="metrics_token_file"):
            await MetricsEndpoint(settings, FIGURES, dict).start(0)

    uvloop.run(story())


def test_labels_of_the_settings_are_on_all_samples() -> None:
    async def story(port: int) -> None:
        page = await sent(port, b"GET /metrics HTTP/1.1\r\n\r\n")
        assert b'raymq_held{cluster="C",zone="eu-1",team="a b"} 3\n' in page

    settings = MetricsSettings(metrics_port=0, metrics_labels="zone:eu-1, team:a b")
    with_endpoint(story, settings=settings)


@pytest.mark.parametrize("labels", ["1a:x", "a-b:x", ":x", "node_id:x", 'a"b:x'])
def test_invalid_labels_are_refused(labels: str) -> None:
    with pytest.raises(ValidationError, match="no name of a label"):
        MetricsSettings(metrics_labels=labels)


def test_used_default_port_is_only_a_warning_and_a_given_one_an_error() -> None:
    async def story() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            endpoint = MetricsEndpoint(MetricsSettings(), FIGURES, dict)
            await endpoint.start(port - PORT_DISTANCE)
            assert endpoint.port == -1
            with pytest.raises(OSError, match="in use"):
                await MetricsEndpoint(MetricsSettings(metrics_port=port), FIGURES, dict).start(0)

    uvloop.run(story())


def test_default_port_is_above_that_of_the_process() -> None:
    assert [default_port(port) for port in (10911, 64_535, 64_536, 0)] == [11_911, 65_535, 0, 0]


def test_figures_are_refreshed_once_before_the_page() -> None:
    refreshed: list[int] = []

    async def refresh() -> None:
        refreshed.append(1)

    figures = tuple(
        Figure(name, Kind.GAUGE, "", lambda: len(refreshed), "Help.", metric=f"raymq_{name}", refresh=refresh)
        for name in ("a", "b")
    )

    async def story(port: int) -> None:
        page = await sent(port, b"GET /metrics HTTP/1.1\r\n\r\n")
        assert b"raymq_a{" in page
        assert page.count(b'{cluster="C"} 1\n') == 2

    with_endpoint(story, figures)
