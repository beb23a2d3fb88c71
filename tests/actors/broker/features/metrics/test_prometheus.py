"""Real Prometheus scrapes a cluster and executes each expression of the board and the alerts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.actors.broker.features.metrics.cluster_process import serving_cluster
from tests.actors.broker.features.metrics.grafana import ALERTS_FILE, board_expressions
from tests.actors.broker.features.metrics.prometheus import Prometheus, running_prometheus
from tests.eventually import eventually

pytestmark = [pytest.mark.slow, pytest.mark.extended]
EVENTS = {
    "rocketmq_send_to_dlq_messages_total",
    "rocketmq_rpc_latency_milliseconds_count",  # of refused requests
    "rocketmq_half_messages",
    "rocketmq_commit_messages_total",
    "rocketmq_rollback_messages_total",
    "rocketmq_timing_messages",
}
"""Metrics of what did not happen in the cluster; all other expressions of the board have results."""
VALUES = {"$cluster": ".*", "$node": ".*", "$topic": ".*", "$group": ".*", "$__rate_interval": "30s"}


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that scrapes a cluster each second."""
    root = tmp_path_factory.mktemp("prometheus")
    with serving_cluster(root / "store") as pages:
        config = {
            "rule_files": [str(ALERTS_FILE)],
            "scrape_configs": [{"job_name": "raymq", "static_configs": [{"targets": pages}]}],
        }
        with running_prometheus(root / "prometheus", config) as program:
            eventually(lambda: program.number('sum(up{job="raymq"})') == len(pages))
            yield program


def filled_in(expression: str) -> str:
    """Return an expression of the board with values for Grafana's variables."""
    for name, value in VALUES.items():
        expression = expression.replace(name, value)
    return expression


def test_each_expression_of_the_board_has_results(prometheus: Prometheus) -> None:
    def empty() -> set[str]:
        found = set()
        for expression in board_expressions():
            response = prometheus.asked("query", query=filled_in(expression))
            assert response["status"] == "success", (expression, response)
            if not response["data"]["result"]:
                found.add(next(iter(re.findall(r"rocketmq_\w+", expression)), expression))
        return found

    eventually(lambda: empty() == EVENTS, within_s=20)  # a rate needs two scrapes


def test_messages_and_lag_have_values(prometheus: Prometheus) -> None:
    for expression in ("sum(rocketmq_messages_in_total)", "sum(rocketmq_consumer_lag_messages)"):
        (result,) = prometheus.asked("query", query=expression)["data"]["result"]
        assert float(result["value"][1]) > 0


def test_alerts_are_loaded_and_evaluated(prometheus: Prometheus) -> None:
    def rules() -> list[dict[str, Any]]:
        return [rule for group in prometheus.asked("rules")["data"]["groups"] for rule in group["rules"]]

    eventually(lambda: all(rule["health"] == "ok" for rule in rules()))
    assert rules()
    firing = {rule["name"] for rule in rules() if rule["state"] == "firing"}
    assert not firing & {"RaymqProcessDown", "RaymqLogDamaged"}
