"""Real Prometheus scrapes a cluster and executes each expression of the board and the alerts.

It is in Debian's package `prometheus`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from cluster.monitoring.alerts import ALERTS
from cluster.monitoring.board import expressions
from tests.actors.broker.metrics.cluster_process import serving_cluster
from tests.eventually import eventually
from tests.ports import free_port

pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Debian's package prometheus"),
]
VALUES = {"$cluster": ".*", "$node": ".*", "$topic": ".*", "$group": ".*", "$__rate_interval": "30s"}


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Prometheus that scrapes a cluster each second."""
    root = tmp_path_factory.mktemp("prometheus")
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
                "prometheus", f"--config.file={root / 'prometheus.yml'}",
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


def test_each_expression_of_the_board_is_executed(prometheus: str) -> None:
    for expression in expressions():
        for name, value in VALUES.items():
            expression = expression.replace(name, value)
        found = asked(prometheus, "query", query=expression)
        assert found["status"] == "success", (expression, found)


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
