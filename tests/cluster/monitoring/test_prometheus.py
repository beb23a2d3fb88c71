"""Real Prometheus scrapes a cluster and executes each expression of the board and the alerts.

It is Debian's; if it is not installed, the package is unpacked into a temporary directory.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.monitoring.alerts import ALERTS
from cluster.monitoring.board import expressions
from tests.actors.broker.metrics.cluster_process import serving_cluster
from tests.eventually import eventually
from tests.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.extended]
EVENTS = {
    "rocketmq_send_to_dlq_messages_total",
    "rocketmq_rpc_latency_milliseconds_count",  # of refused requests
    "rocketmq_commit_messages_total",
    "rocketmq_rollback_messages_total",
    "rocketmq_timing_messages",
}
"""Metrics of what did not happen in the cluster; all other expressions of the board have results."""
VALUES = {"$cluster": ".*", "$node": ".*", "$topic": ".*", "$group": ".*", "$__rate_interval": "30s"}


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Prometheus that scrapes a cluster each second."""
    root = tmp_path_factory.mktemp("prometheus")
    executable = shutil.which("prometheus") or unpacked(root / "package")
    with serving_cluster(root / "store") as pages:
        port = free_port()
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(ALERTS)],
            "scrape_configs": [{"job_name": "raymq", "static_configs": [{"targets": pages}]}],
        }
        (root / "prometheus.yml").write_text(yaml.safe_dump(config))
        program = subprocess.Popen(
            [
                executable, f"--config.file={root / 'prometheus.yml'}",
                f"--storage.tsdb.path={root / 'data'}", f"--web.listen-address=127.0.0.1:{port}",
            ],
            stderr=(root / "log").open("w"),
        )  # fmt: skip
        try:
            address = f"http://127.0.0.1:{port}"
            eventually(lambda: up_count(address) == len(pages), (root / "log").read_text())
            yield address
        finally:
            program.terminate()
            program.wait()


def unpacked(folder: Path) -> str:
    """Download Debian's package, unpack it without installing it, and return the path of its program."""
    folder.mkdir()
    folder.chmod(0o777)  # apt writes as a user of its own
    subprocess.run(["apt-get", "update", "-qq"], check=True)
    subprocess.run(["apt-get", "download", "-qq", "prometheus"], cwd=folder, check=True)
    subprocess.run(["dpkg-deb", "-x", *folder.glob("*.deb"), folder / "unpacked"], check=True)
    return str(folder / "unpacked" / "usr" / "bin" / "prometheus")


def asked(address: str, path: str, **parameters: str) -> dict[str, Any]:
    url = f"{address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    try:
        with urllib.request.urlopen(url, timeout=30) as response:
            text = response.read()
    except urllib.error.HTTPError as error:
        text = error.read()
    found: dict[str, Any] = json.loads(text)
    return found


def up_count(address: str) -> int:
    try:
        result = asked(address, "query", query='sum(up{job="raymq"})')["data"]["result"]
    except (urllib.error.URLError, json.JSONDecodeError):  # it has not started
        return 0
    return int(result[0]["value"][1]) if result else 0


def filled_in(expression: str) -> str:
    """Return an expression of the board with values for Grafana's variables."""
    for name, value in VALUES.items():
        expression = expression.replace(name, value)
    return expression


def test_each_expression_of_the_board_has_results(prometheus: str) -> None:
    def empty() -> set[str]:
        found = set()
        for expression in expressions():
            response = asked(prometheus, "query", query=filled_in(expression))
            assert response["status"] == "success", (expression, response)
            if not response["data"]["result"]:
                found.add(next(iter(re.findall(r"rocketmq_\w+", expression)), expression))
        return found

    eventually(lambda: empty() == EVENTS, within_s=20)  # a rate needs two scrapes


def test_messages_and_lag_have_values(prometheus: str) -> None:
    for expression in ("sum(rocketmq_messages_in_total)", "sum(rocketmq_consumer_lag_messages)"):
        (result,) = asked(prometheus, "query", query=expression)["data"]["result"]
        assert float(result["value"][1]) > 0


def test_alerts_are_loaded_and_evaluated(prometheus: str) -> None:
    def rules() -> list[dict[str, Any]]:
        return [rule for group in asked(prometheus, "rules")["data"]["groups"] for rule in group["rules"]]

    eventually(lambda: all(rule["health"] == "ok" for rule in rules()))
    assert rules()
    firing = {rule["name"] for rule in rules() if rule["state"] == "firing"}
    assert not firing & {"RaymqProcessDown", "RaymqLogDamaged"}
