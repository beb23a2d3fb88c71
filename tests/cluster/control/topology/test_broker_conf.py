"""Start brokers from RocketMQ's broker.conf: settings are applied, ignored or refused with their line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from actors.broker.broker_settings import BrokerSettings
from cluster import launch
from cluster.control.kinds import BROKER, make_specs
from cluster.control.plan import Plan
from cluster.control.topology.topology_file import TopologyError, load_with_source

# A typical production file: comments, a namesrv list, thread pools, and settings of RocketMQ's documentation.
PRODUCTION = """\
# Licensed to the Apache Software Foundation (ASF) under one or more
brokerClusterName = orders-prod
brokerName = broker-a
brokerId = 0
namesrvAddr = 10.1.0.11:9876;10.1.0.12:9876
brokerIP1 = 10.1.0.21
listenPort = 10911

deleteWhen = 04;16
fileReservedTime = 120
diskMaxUsedSpaceRatio = 88
brokerRole = ASYNC_MASTER
flushDiskType = ASYNC_FLUSH
storePathRootDir = /data/rocketmq/store
storePathCommitLog = /data/rocketmq/store/commitlog
storePathConsumeQueue = /data/rocketmq/store/consumequeue
storePathIndex = /data/rocketmq/store/index
mapedFileSizeCommitLog = 1073741824
mappedFileSizeConsumeQueue = 6000000
maxMessageSize = 65536
autoCreateTopicEnable = false
messageDelayLevel = 1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h
sendMessageThreadPoolNums = 128
useEpollNativeSelector = true
aclEnable = false
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAYMQ_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def conf(tmp_path: Path):
    def write(text: str, name: str = "broker.conf") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def specs_of(home: Path, *confs: Path, overrides: tuple[str, ...] = ()) -> tuple[list[Any], list[str]]:
    topology, source = load_with_source(None, overrides, confs)
    specs = make_specs(topology, home, {}, source)
    return [spec for spec in specs if spec.kind is BROKER], source.warnings


def refusal(*confs: Path, overrides: tuple[str, ...] = ()) -> str:
    with pytest.raises(TopologyError) as caught:
        specs_of(Path("home"), *confs, overrides=overrides)
    return str(caught.value)


def test_production_file_becomes_broker_with_its_settings(home: Path, conf) -> None:
    path = conf(PRODUCTION)
    (spec,), warnings = specs_of(home, path)
    assert (spec.name, spec.cluster) == ("broker-a-0", "orders-prod")
    assert (spec.listen, spec.advertised) == (("127.0.0.1", 10911), ("10.1.0.21", 10911))
    settings = BrokerSettings.model_validate(spec.settings)
    assert settings.store_root == Path("/data/rocketmq/store")
    assert settings.auto_create_topics is False
    store = settings.store
    assert (store.flush, store.delete_when_h, store.file_reserved_time_h) == ("async", "04;16", 120)
    assert (store.disk_max_used_percent, store.max_message_bytes) == (88, 65536)
    assert len(store.delay_levels_ms()) == 19
    unknown = "is ignored: RayMQ has no such setting"
    assert warnings[0].startswith(f"{path}:5: namesrvAddr=10.1.0.11:9876;10.1.0.12:9876 is ignored: ")
    assert warnings[1:] == [
        f"{path}:18: mapedFileSizeCommitLog {unknown}; did you mean mappedFileSizeCommitLog?",
        f"{path}:23: sendMessageThreadPoolNums {unknown}",
        f"{path}:24: useEpollNativeSelector {unknown}",
    ]


def test_broker_conf_of_the_rocketmq_store_fixture_is_accepted(home: Path, clean_store) -> None:
    (spec,), warnings = specs_of(home, clean_store().broker_conf)
    settings = BrokerSettings.model_validate(spec.settings)
    assert spec.listen == ("127.0.0.1", 30921)
    assert settings.store.commit_log_file_bytes == 1 << 20  # set twice: the last value wins
    assert (settings.store.index_slots, settings.store.file_reserved_time_h) == (5000, 720)
    assert settings.timer_wheel_enable
    assert not any("timerWheelEnable" in warning for warning in warnings)


def test_each_file_becomes_a_broker_and_set_overrides_both(home: Path, conf) -> None:
    first = conf("brokerName=broker-a\nlistenPort=10911\nflushDiskType=SYNC_FLUSH", "a.conf")
    second = conf("brokerName=broker-b\nlistenPort=10921\nflushDiskType=SYNC_FLUSH", "b.conf")
    overrides = ("brokers.broker-b.settings.fileReservedTime=24", "brokers.broker-a.listen_port=0")
    specs, warnings = specs_of(home, first, second, overrides=overrides)
    assert [(spec.name, spec.listen[1]) for spec in specs] == [("broker-a-0", 0), ("broker-b-0", 10921)]
    assert specs[1].settings["store"]["file_reserved_time_h"] == 24
    assert warnings == []


def test_missing_flush_disk_type_is_reported_as_a_different_default(home: Path, conf) -> None:
    (spec,), warnings = specs_of(home, conf("brokerName=broker-a"))
    assert spec.settings["store"]["flush"] == "sync"
    assert "flushDiskType is not set: RocketMQ's default is ASYNC_FLUSH" in warnings[0]


@pytest.mark.parametrize(
    ("text", "port"),
    [
        ("", None),
        ("metricsExporterType=PROM", 5557),
        ("metricsExporterType=prom\nmetricsPromExporterPort=6000", 6000),
        ("metricsPromExporterPort=6000", 6000),
        ("metricsExporterType=DISABLE\nmetricsPromExporterPort=6000", -1),
    ],
)
def test_metrics_of_a_file_become_settings(home: Path, conf, text: str, port: int | None) -> None:
    path = conf(f"brokerName=broker-a\nflushDiskType=SYNC_FLUSH\nmetricsLabel=zone:eu\n{text}")
    (spec,), warnings = specs_of(home, path)
    settings = BrokerSettings.model_validate(spec.settings)
    assert (settings.metrics_port, settings.metrics_labels) == (port, "zone:eu")
    assert warnings == []


@pytest.mark.parametrize("exporter", ["OTLP_GRPC", "LOG", "1"])
def test_other_exporters_of_metrics_are_refused_with_advice(conf, exporter: str) -> None:
    assert "use PROM, and let an OpenTelemetry collector" in refusal(conf(f"metricsExporterType={exporter}"))


@pytest.mark.parametrize("key", ["initAuthenticationUser", "innerClientAuthenticationCredentials"])
def test_secret_in_a_file_is_refused_and_not_shown(conf, key: str) -> None:
    path = conf(f'{key}={{"accessKey":"inner","secretKey":"top-secret"}}\n')
    text = refusal(path)
    assert "set inner_credentials_file" in text
    assert "top-secret" not in text


def test_switches_of_access_control_become_settings(home: Path, conf) -> None:
    lines = "authenticationEnabled=true\nauthorizationEnabled=true\ninner_credentials_file=/etc/inner.key\n"
    (spec,), _ = specs_of(home, conf(lines))
    assert spec.settings["authentication_enabled"] is True
    assert spec.settings["authorization_enabled"] is True
    assert str(spec.settings["inner_credentials_file"]) == "/etc/inner.key"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("storeType=defaultRocksDB", "it changes the store format"),
        ("enableConsumeQueueExt=true", "it changes the store format"),
        ("enableDLegerCommitLog=true", "it changes the store format"),
        ("brokerRole=SLAVE", "RayMQ does not support replicas yet"),
        ("brokerId=1", "RayMQ does not support replicas yet"),
        ("aclEnable=true", "set authenticationEnabled and authorizationEnabled"),
        ("storePathIndex=/fast/index", "RayMQ stores it at /s/index; move it there"),
    ],
)
def test_unsupported_setting_is_refused_with_its_line(conf, line: str, message: str) -> None:
    path = conf(f"# a comment\nstorePathRootDir=/s\n{line}\n")
    text = refusal(path)
    assert text.startswith(f"{path}:3: {line} is not supported: ")
    assert message in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a=1\nfileReservedTime=soon", ":2: brokers[0].settings.fileReservedTime: 'soon'"),
        ("deleteWhen=25", ":1: brokers[0].settings.deleteWhen: '25' is not a list of hours"),
        ("listenPort=99999", ":1: brokers[0].listen_port: 99999 is greater than the maximum 65535"),
        ("listenPort=9876", ":1: brokers[0].listen_port: 127.0.0.1:9876 is already used by nameservers[0]"),
        ("brokerName=a/b", ":1: brokers[0].name: 'a/b' is not a valid name"),
        ("\nrebalancers=x:1", ":2: rebalancers: set it with the topology's key: rebalancers"),
        ("a=\\u1", "cannot be read: line 1: invalid escape"),
    ],
)
def test_invalid_value_is_refused_with_its_line(conf, text: str, message: str) -> None:
    path = conf(text)
    assert f"{path}{message}" in refusal(path).replace(f"{path}: cannot", f"{path}cannot")


def test_files_of_two_clusters_and_missing_files_are_refused(conf, tmp_path: Path) -> None:
    first = conf("brokerClusterName=one", "a.conf")
    second = conf("brokerClusterName=two\nbrokerName=b", "b.conf")
    assert f"the files have one ({first}:1), two ({second}:1)" in refusal(first, second)
    assert "absent.conf: cannot be read" in refusal(tmp_path / "absent.conf")


def test_up_prints_ignored_settings_first(
    conf, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drivers: list[Any] = []
    monkeypatch.setattr(launch.Driver, "up", lambda self: drivers.append(self.topology) or _empty_result())
    path = conf("brokerName=b\nflushDiskType=SYNC_FLUSH\nnoSuchKey=1")
    launch.run_up(None, [], Console(width=200), dry_run=True, broker_confs=[str(path)])
    assert capsys.readouterr().out.startswith(f"{path}:3: noSuchKey is ignored")
    assert [broker.name for broker in drivers[0].brokers] == ["b"]


def _empty_result() -> launch.UpResult:
    return launch.UpResult(Plan([], []), [], launch.SessionMode.STARTED)
