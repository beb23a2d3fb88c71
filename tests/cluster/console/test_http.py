"""The console's port: hosts, shares of clients, requests that are late, large or no valid HTTP."""

from __future__ import annotations

import asyncio
import gzip
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pytest

from cluster.console import api, lanes
from cluster.console.api_errors import ApiError
from cluster.console.lanes import RequestLane
from cluster.console.resources import messages
from tests.cluster.client.conftest import Cluster
from tests.cluster.console.conftest import API, Console
from tests.eventually import LIMIT_S, eventually


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200), ("localhost:{port}", 200), ("127.0.0.1", 200), ("127.0.0.1:{port}", 200),
        ("[::1]", 200), ("[::1]:{port}", 200), ("[0:0:0:0:0:0:0:1]", 200), ("127.0.0.2", 200),
        ("LOCALHOST", 200),
        ("[::1].evil.example", 421), ("[::2]", 421), ("evil.example", 421), ("evil.example:80", 421),
        ("::1", 421),
        ("127.0.0.1.evil.example", 421), ("10.0.0.1", 421), ("[", 421), (":80", 421), ("localhost:evil", 421),
    ],
)  # fmt: skip
def test_console_serves_only_names_of_this_machine(console: Console, host: str, status: int) -> None:
    headers = {"Host": host.format(port=console.port)}
    assert console.request("GET", f"{API}/session", headers=headers)[0] == status


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Let each search wait until the event is set."""
    may_continue, scan = threading.Event(), messages.scan

    def wait(*args: object) -> object:
        assert may_continue.wait(LIMIT_S)
        return scan(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(messages, "scan", wait)
    yield may_continue
    may_continue.set()


def test_searches_of_a_client_leave_room_for_pages_and_others(
    consoles: Callable[..., Console], cluster: Cluster, gate: threading.Event
) -> None:
    console = consoles(cluster)
    console.await_sample()
    path = f"/topics/{cluster.topic(queues=1)}/messages"
    with ThreadPoolExecutor(80) as threads:
        searches = [threads.submit(console.request, "GET", f"{API}{path}") for _ in range(80)]
        refused = 80 - api.SEARCH_THREADS // 2 - api.CLIENT_SEARCHES_MAX
        eventually(lambda: sum(each.done() for each in searches) == refused)
        for page in ("/overview", "/topics", "/session"):
            assert console.request("GET", f"{API}{page}")[0] == 200, page
        gate.set()
        statuses = [each.result()[0] for each in searches]
    assert (statuses.count(503), statuses.count(200)) == (refused, 80 - refused)
    assert console.request("GET", f"{API}{path}")[0] == 200


def test_requests_of_all_clients_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "WAITING", replace(lanes.WAITING, limit=3))

    async def story() -> None:
        lane, may_end = RequestLane("test", 4, 3), threading.Event()
        held = [asyncio.create_task(lane.run(f"client {number}", may_end.wait)) for number in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(ApiError, match="3 requests are waiting, over the limit of 3"):
            await lane.run("another", lambda: 7)
        may_end.set()
        await asyncio.wait(held)
        assert await lane.run("another", lambda: 7) == 7
        lane.close()

    asyncio.run(asyncio.wait_for(story(), LIMIT_S))


def test_client_uses_half_of_the_threads_and_others_the_rest() -> None:
    async def story() -> None:
        lane, may_end = RequestLane("test", 4, 3), threading.Event()
        try:
            greedy = [asyncio.create_task(lane.run("greedy", may_end.wait)) for _ in range(9)]
            await asyncio.wait(greedy, return_when=asyncio.FIRST_COMPLETED)
            refused = [each.exception() for each in greedy if each.done()]
            assert len(refused) == 9 - 2 - 3
            assert all(isinstance(each, ApiError) and each.status == 503 for each in refused)
            assert await lane.run("other", lambda: 7) == 7
            assert lane.waiting == 5
        finally:
            may_end.set()
        await asyncio.wait(greedy)
        assert lane.waiting == 0
        lane.close()

    asyncio.run(asyncio.wait_for(story(), LIMIT_S))


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"G@T / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHo st: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"x" * 300_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"H%d: x\r\n" % number for number in range(500)) + b"\r\n",
        b"GET /" + b"x" * 300_000 + b" HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET http://[bad HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
    ids=lambda data: data[:30].decode("latin-1"),
)
def test_malformed_http_is_one_line_of_the_log(
    console: Console, data: bytes, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.INFO), socket.create_connection(("127.0.0.1", console.port)) as connection:
        connection.settimeout(LIMIT_S)
        connection.sendall(data)
        with suppress(OSError):  # the console may have closed the connection
            connection.shutdown(socket.SHUT_WR)
        received = b""
        while part := connection.recv(65_536):
            received += part
    assert received == b"" or received.split(b" ")[1][:1] == b"4", received
    assert not any(record.exc_info for record in caplog.records), caplog.text
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GET /",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HTTP/1.1\r\n",
        b"POST /api/v1/login HTTP/1.1\r\nHost: localhost\r\nX-RayMQ-Console: 1\r\nContent-Length: 9\r\n\r\n{",
    ],
    ids=["nothing", "line", "head", "second request", "body"],
)
def test_unfinished_request_is_closed_at_a_deadline(
    consoles: Callable[..., Console], cluster: Cluster, data: bytes
) -> None:
    console = consoles(cluster, request_timeout_ms=300)
    with socket.create_connection(("127.0.0.1", console.port)) as connection:
        connection.settimeout(LIMIT_S)
        connection.sendall(data)
        while connection.recv(65_536):  # until the console closes it
            pass


def test_request_that_takes_long_is_not_closed(
    consoles: Callable[..., Console], cluster: Cluster, gate: threading.Event
) -> None:
    console = consoles(cluster, request_timeout_ms=100)
    path = f"{API}/topics/{cluster.topic(queues=1)}/messages"
    with ThreadPoolExecutor(1) as threads:
        search = threads.submit(console.request, "GET", path)
        for _ in range(3):  # each of them ends at its own deadline, later than the search began
            with socket.create_connection(("127.0.0.1", console.port)) as silent:
                silent.settimeout(LIMIT_S)
                assert silent.recv(1) == b""
        gate.set()
        assert search.result()[0] == 200


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b'{"user": "' + b"x" * api.BODY_BYTES_MAX + b'"}', {}, 413),
        (gzip.compress(b'{"user": "' + b"x" * (8 << 20) + b'"}'), {"Content-Encoding": "gzip"}, 400),
        (gzip.compress(b"{}"), {"Content-Encoding": "gzip"}, 400),
        (b"[" * 60_000, {}, 400),
        (b"[" + b"0," * 30_000 + b"0]", {}, 400),
    ],
    ids=["long", "inflating", "compressed", "deep", "many"],
)
def test_bodies_are_bounded_before_they_are_decoded(
    console: Console, body: bytes, headers: dict[str, str], status: int
) -> None:
    found, text, _ = console.request("POST", f"{API}/login", body, headers)
    assert found == status, text


def test_number_of_parameters_is_bounded(console: Console) -> None:
    query = "&".join(f"a{number}=1" for number in range(api.PARAMETERS_MAX + 1))
    status, text = console.refused(f"/topics?{query}")
    assert (status, "over 50 parameters" in text) == (400, True)
