"""A byte order mark at the beginning of a file that an editor or another tool wrote is skipped."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actors.wire.signing import read_credentials
from benchmarks.experiments.profile import read_rates
from cluster.client.admin.plain_acl import read_plain_acl
from cluster.control.topology.broker_conf import read_broker_conf
from cluster.control.topology.topology_file import load_topology, read_yaml
from cluster.lab.bench.omb.workload import read_workload
from tests.cluster.cli.conftest import Raymq

REPO = Path(__file__).parents[3]
KEYS = b"AccessKey=alice\nSecretKey=12345678\n"
ACL = b"accounts:\n- accessKey: alice\n  secretKey: '12345678'\n"
WORKLOAD = b"""name: w
topics: 1
partitionsPerTopic: 1
messageSize: 10
subscriptionsPerTopic: 1
consumerPerSubscription: 1
producersPerTopic: 1
producerRate: 1
consumerBacklogSizeGB: 0
testDurationMinutes: 1
payloadFile: p
"""
READERS: list[tuple[Callable[[Path], Any], bytes]] = [
    (read_credentials, KEYS),
    (read_plain_acl, ACL),
    (load_topology, (REPO / "configs" / "local.yaml").read_bytes()),
    (read_yaml, b"a: 1\n"),
    (lambda path: read_broker_conf(path).entry, b"brokerName=broker-x\nlistenPort=10911\n"),
    (read_rates, b"time_s,rate_per_s\n0,1\n1,2\n"),
    (read_workload, WORKLOAD),
]


@pytest.mark.parametrize(("read", "content"), READERS)
def test_file_with_a_mark_is_read_like_one_without(
    read: Callable[[Path], Any], content: bytes, tmp_path: Path
) -> None:
    file = tmp_path / "given"
    (tmp_path / "p").write_bytes(b"0123456789")
    found = []
    for given in (content, BOM_UTF8 + content):
        file.write_bytes(given)
        file.chmod(0o600)
        found.append(read(file))
    assert found[0] == found[1]
    assert "\ufeff" not in str(found)


@pytest.mark.parametrize("options", [(), ("--json-lines",)])
def test_lines_with_a_mark_are_sent_without_it(raymq: Raymq, options: tuple[str, ...]) -> None:
    topic = raymq.filled()
    lines = (
        [b"one", b"two"] if not options else [json.dumps({"body": each}).encode() for each in ("one", "two")]
    )
    assert raymq.ok("send", topic, *options, given=BOM_UTF8 + b"\n".join(lines))["sent"] == 2
    rows = raymq.ok("tail", topic, "--from", "earliest", "--no-follow")
    assert {row["body"] for row in rows} == {"one", "two"}
