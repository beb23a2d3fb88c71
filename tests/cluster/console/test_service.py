"""Start and stop of the console: as a service, and as the command `raymq console`."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from cluster.cli.main import build
from cluster.console import service
from tests.cluster.client.conftest import Cluster
from tests.cluster.console.conftest import Console
from tests.eventually import LIMIT_S


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_command_prints_its_address_and_ends_cleanly(cluster: Cluster, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "cluster.cli.entry", "console", "-n", cluster.address, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.fullmatch(r"console: http://127\.0\.0\.1:(\d+)/\n", line)
    assert found, line
    with socket.create_connection(("127.0.0.1", int(found[1])), LIMIT_S) as page:
        page.sendall(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
        assert page.recv(15) == b"HTTP/1.0 200 OK"
    os.kill(process.pid, number)
    _, errors = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, "Traceback" in errors) == (0, False), errors


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["--host", "0.0.0.0"], 2, "other machines can reach"),
        (["--bodies", "some"], 2, "--bodies"),
        (["--tls-certificate", "nosuch.pem", "--tls-key", "nosuch.key"], 1, "nosuch.pem"),
        (["-n", "nonsense"], 2, "nonsense"),
    ],
    ids=str,
)
def test_command_refuses_bad_settings(arguments: list[str], code: int, part: str) -> None:
    words = ["console", "--port", "0", *arguments]
    result = CliRunner().invoke(build(words), words)
    assert (result.exit_code, part in result.stderr, result.stderr.count("\n")) == (code, True, 1), (
        result.stderr
    )


def test_connections_without_a_request_give_their_place_to_others(
    cluster: Cluster, consoles: Callable[..., Console], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "CONNECTIONS", replace(service.CONNECTIONS, limit=3))
    console = consoles(cluster)
    kept = http.client.HTTPConnection("127.0.0.1", console.port, timeout=LIMIT_S)

    def asks() -> bool:
        kept.request("GET", "/", headers={"Host": "localhost"})
        response = kept.getresponse()
        return bool(response.read()) and response.status == 200

    assert asks()
    silent = []
    for number in range(12):
        silent.append(socket.create_connection(("127.0.0.1", console.port), LIMIT_S))
        if number % 2:
            silent[-1].sendall(b"GET / HTTP/1.1\r\nHost: loc")
        if number % 3 == 2:
            assert console.request("GET", "/")[0] == 200
    assert asks()  # those without a request were closed first
    assert silent[0].recv(1) == b""
    for each in silent:
        each.close()
    kept.close()


def test_port_in_use_is_refused_with_the_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        words = ["console", "--port", str(server.getsockname()[1])]
        result = CliRunner().invoke(build(words), words)
    assert (result.exit_code, "choose another port with --port" in result.stderr) == (1, True)


def test_metrics_count_responses_and_samples(consoles: Callable[..., Console], cluster: Cluster) -> None:
    console = consoles(cluster, metrics_port=0)
    console.await_sample()
    assert console.request("GET", "/api/v1/nosuch")[0] == 404

    def get(path: str) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", console.service.metrics.port, timeout=LIMIT_S)
        connection.request("GET", path)
        text = connection.getresponse().read().decode()
        connection.close()
        return text

    labels = f'node_type="console",node_id="127.0.0.1:{console.port}"'
    page = get("/metrics")
    for line in (
        'responses_total{%s,status="404"} 1',
        "waiting_requests{%s} ",
        "sessions{%s} 0",
        "sample_problems{%s} 0",
    ):
        assert f"raymq_console_{line % labels}" in page
    assert f"raymq_console_samples_total{{{labels}}} 0" not in page
    assert get("/healthz") == "serving\n"


def test_files_are_served_with_an_etag(consoles: Callable[..., Console], cluster: Cluster) -> None:
    console = consoles(cluster)
    status, body, headers = console.request("GET", "/app.js")
    assert (status, headers["Content-Type"]) == (200, "text/javascript; charset=utf-8")
    assert b"render(" in body
    assert console.request("GET", "/app.js", headers={"If-None-Match": headers["ETag"]})[0] == 304
    for path in ("/../service.py", "/static/app.js", "/vendor/vendor.lock.json", "/%2e%2e/service.py"):
        assert console.request("GET", path)[0] == 404, path
