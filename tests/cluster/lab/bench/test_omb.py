"""OpenMessaging Benchmark: workload files, rate search, histogram, and one short run."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from cluster.cli.main import build
from cluster.client import Admin
from cluster.lab.bench.omb.figures import BUCKETS_PER_E, LatencyHistogram
from cluster.lab.bench.omb.java_clients import java_clients
from cluster.lab.bench.omb.rate import FIRST_RATE, Pacer, RateSearch
from cluster.lab.bench.omb.workload import read_workload
from cluster.lab.bench.options import BenchFailed
from tests.cluster.client.conftest import Cluster
from tests.compat.build import CLIENT, java_kit

WORKLOAD: dict[str, Any] = {
    "name": "1 topic / 1 partition / 1Kb",
    "topics": 1,
    "partitionsPerTopic": 1,
    "keyDistributor": "NO_KEY",
    "messageSize": 1024,
    "payloadFile": "payload/payload-1Kb.data",
    "subscriptionsPerTopic": 1,
    "consumerPerSubscription": 1,
    "producersPerTopic": 1,
    "producerRate": 50_000,
    "consumerBacklogSizeGB": 0,
    "testDurationMinutes": 15,
}
SHORT = {"producerRate": 200, "testDurationMinutes": 0.005, "warmupDurationMinutes": 0.001}
SUFFIXES = ("Avg", "50pct", "75pct", "95pct", "99pct", "999pct", "9999pct", "Max")


def written(folder: Path, **changed: Any) -> Path:
    """Write a workload and its payload in folders as those of the benchmark; a key of None is left out."""
    for name in ("workloads", "payload"):
        (folder / name).mkdir()
    (folder / "payload" / "payload-1Kb.data").write_bytes(b"x" * 1024)
    path = folder / "workloads" / "w.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in {**WORKLOAD, **changed}.items() if v is not None}))
    return path


def test_workload_with_a_payload_file_is_read(tmp_path: Path) -> None:
    workload, payloads = read_workload(written(tmp_path))
    assert (workload.producerRate, workload.warmupDurationMinutes, workload.backlogDrainRatio) == (
        50_000,
        1,
        1,
    )
    assert payloads == [b"x" * 1024]


def test_random_payloads_have_the_ratio_of_random_bytes(tmp_path: Path) -> None:
    random = {"useRandomizedPayloads": True, "randomBytesRatio": 0.5, "randomizedPayloadPoolSize": 3}
    _, payloads = read_workload(written(tmp_path, payloadFile=None, **random))
    assert [len(each) for each in payloads] == [1024] * 3
    assert all(each[512:] == bytes(512) for each in payloads)
    assert len(set(payloads)) == 3


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"producerRat": 1}, "producerRat: no such key; did you mean 'producerRate'?"),
        ({"topics": None}, "topics: this key is required"),
        ({"topics": 0}, "topics: 0 is less than the minimum 1"),
        ({"topics": "two"}, "topics: 'two': "),
        ({"keyDistributor": "HASH"}, "keyDistributor: 'HASH' is invalid"),
        ({"payloadFile": "missing"}, "payloadFile: no such file: missing, "),
        ({"payloadFile": None}, "payloadFile: this key is required"),
        ({"messageSize": 100}, "has 1024 bytes, but messageSize is 100"),
        ({"useRandomizedPayloads": True}, "randomizedPayloadPoolSize: "),
        ({"consumerBacklogSizeGB": 1, "producerRate": 0}, "consumerBacklogSizeGB: a backlog needs"),
    ],
    ids=["unknown", "required", "small", "type", "choice", "missing", "none", "size", "pool", "backlog"],
)
def test_invalid_workload_is_refused_by_key(tmp_path: Path, changed: dict[str, Any], problem: str) -> None:
    with pytest.raises(BenchFailed) as raised:
        read_workload(written(tmp_path, **changed))
    assert problem in str(raised.value)


def test_missing_workload_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchFailed, match=r"none\.yaml: cannot be read"):
        read_workload(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("omb", "omb needs a workload file"),
        ("omb w.yaml --seconds 3", "--seconds"),
        ("omb w.yaml --flush sync", "--flush"),
        ("push --nameserver a:1", "only omb takes it"),
        ("push w.yaml", "only omb takes it"),
        ("push --driver java", "only omb takes it"),
        ("omb w.yaml --driver kafka", "'kafka' is invalid: use raymq or java"),
        ("omb w.yaml --driver java", "--driver java needs the folder"),
        ("omb w.yaml --client-jars lib", "only --driver java takes it"),
    ],
    ids=[
        "no-workload",
        "seconds",
        "flush",
        "nameserver",
        "workload",
        "other-driver",
        "driver",
        "no-jars",
        "jars",
    ],
)
def test_options_of_other_benchmarks_are_refused(words: str, problem: str) -> None:
    ended = CliRunner().invoke(build(["bench"]), ["bench", *words.split()], env={"COLUMNS": "200"})
    assert ended.exit_code == 2
    assert problem in ended.stderr


def test_percentiles_are_at_most_one_percent_wrong() -> None:
    times = LatencyHistogram()
    for us in range(1, 10_001):
        times.add(us)
    for percent in (50, 75, 95, 99, 99.9):
        assert times.percentile_us(percent) == pytest.approx(percent * 100, rel=0.0101)
    assert (times.mean_us(), times.max_us) == (5000.5, 10_000)


def test_times_of_another_process_count_as_own() -> None:
    own, other = LatencyHistogram(), LatencyHistogram()
    for us in (1, 5, 5, 700, 1_000_000):
        own.add(us)
    counts = Counter(int(math.log(us) * BUCKETS_PER_E) for us in (1, 5, 5, 700, 1_000_000))
    other.add_buckets(counts, 1_000_711, 1_000_000)
    assert other.fields(1.0) == own.fields(1.0)


def test_late_send_does_not_move_the_intended_times_after_it() -> None:
    pacer = Pacer(rate=10, now_s=5.0)
    assert [pacer.next_s() for _ in range(3)] == pytest.approx([5.0, 5.1, 5.2])
    pacer.restart(2, 9.0)
    assert [pacer.next_s() for _ in range(2)] == pytest.approx([9.0, 9.5])


@pytest.mark.parametrize("limit", ["sends", "consumers"])
def test_rate_search_converges_to_what_the_cluster_sustains(limit: str) -> None:
    search, rates = RateSearch(), []
    for _ in range(60):
        sent = int(min(search.rate, 73_000) * 3) if limit == "sends" else int(search.rate * 3)
        behind = 0 if limit == "sends" else max(sent - 73_000 * 3, 0)
        rates.append(search.step(3.0, sent, behind))
    assert rates[0] == 2 * FIRST_RATE
    assert rates[-10:] == pytest.approx([73_000] * 10, rel=0.35)


@pytest.fixture
def one_broker(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path / "cluster", brokers=1)
    yield cluster
    cluster.stop()


@pytest.mark.parametrize("backlog_gb", [0, 0.0001], ids=["steady", "backlog"])
def test_run_prints_the_result_fields(
    one_broker: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backlog_gb: float
) -> None:
    monkeypatch.setattr("cluster.interrupts.interrupt_once", lambda: None)
    path = written(tmp_path, **SHORT, consumerBacklogSizeGB=backlog_gb)
    words = ["bench", "omb", str(path), "--nameserver", one_broker.address, "--json"]
    check_result(invoke(words), one_broker)


@pytest.mark.extended
@pytest.mark.parametrize(
    "changed",
    [{}, {"consumerBacklogSizeGB": 0.0001}, {"producerRate": 0}, {"keyDistributor": "KEY_ROUND_ROBIN"}],
    ids=["steady", "backlog", "search", "keys"],
)
def test_java_driver_prints_the_result_fields(
    one_broker: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any]
) -> None:
    monkeypatch.setattr("cluster.interrupts.interrupt_once", lambda: None)
    long = {"testDurationMinutes": 0.05, "warmupDurationMinutes": 0.07}
    path = written(tmp_path, **SHORT | long | {"topics": 2, "subscriptionsPerTopic": 2} | changed)
    words = ["bench", "omb", str(path), "--nameserver", one_broker.address, "--json"]
    words += ["--driver", "java", "--client-jars", str(java_kit().jars / CLIENT)]
    found = invoke(words)
    check_result(found, one_broker)
    assert found["driver"] == "java"
    assert found["backlog"][0] < 1_000


@pytest.mark.parametrize("problem", ["java", "jars"])
def test_java_driver_names_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    if problem == "java":
        monkeypatch.setenv("PATH", str(tmp_path))
    workload, payloads = read_workload(written(tmp_path))

    async def start() -> None:
        async with java_clients(workload, payloads, "127.0.0.1:1", ["t"], lambda _: None, tmp_path):
            pass

    with pytest.raises(BenchFailed) as raised:
        asyncio.run(start())
    expected = {"java": "install JDK 11 or later", "jars": "no rocketmq-client-*.jar"}
    assert expected[problem] in str(raised.value)


@pytest.mark.extended
def test_end_of_the_java_program_is_an_error_with_its_output(tmp_path: Path) -> None:
    workload, payloads = read_workload(written(tmp_path))
    jars = java_kit().jars / CLIENT

    async def start() -> None:
        async with java_clients(workload, payloads, "127.0.0.1:1", ["t"], lambda _: None, jars):
            pass

    with pytest.raises(BenchFailed, match=r"(?s)exited with code 1; its last output:.*RemotingConnect"):
        asyncio.run(start())


def invoke(words: list[str]) -> dict[str, Any]:
    """Run the command and return the result that it prints."""
    ended = CliRunner().invoke(build(words), words)
    assert ended.exit_code == 0, ended.output
    return dict(json.loads(ended.stdout))


def check_result(found: dict[str, Any], one_broker: Cluster) -> None:
    """Check the fields of a result of one period, and that the topics are deleted."""
    latencies = [
        f"{kind}Latency{each}" for kind in ("publish", "publishDelay", "endToEnd") for each in SUFFIXES
    ]
    kinds = ("Publish", "PublishDelay", "EndToEnd")
    totals = [f"aggregated{kind}Latency{each}" for kind in kinds for each in (*SUFFIXES, "Quantiles")]
    lists = ["publishRate", "publishErrorRate", "consumeRate", "backlog", *latencies]
    setup = ["workload", "driver", "messageSize", "topics", "partitions"]
    setup += ["producersPerTopic", "consumersPerTopic"]
    assert sorted(found) == sorted([*setup, *lists, *totals])
    assert {len(found[each]) for each in lists} == {1}
    assert found["publishRate"][0] > 0
    assert found["consumeRate"][0] > 0
    assert found["publishErrorRate"] == [0]
    assert 0 < found["aggregatedPublishLatency50pct"] <= found["aggregatedPublishLatencyMax"]
    assert found["aggregatedEndToEndLatencyMax"] > 0
    with Admin(one_broker.address) as admin:
        assert not [each for each in admin.topics() if each.startswith("omb-")]
