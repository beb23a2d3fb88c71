"""Converts RocketMQ's `broker.conf` to a broker of a topology.

brokerName, listenPort, brokerIP1, bindAddress, storePathRootDir   →  the broker's entry
brokerClusterName                                                  →  the topology's cluster
keys of settings that RayMQ has                                    →  the entry's settings, unchanged
keys that change the store format, guarantees or security          →  an error
all other keys                                                     →  a warning
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from actors.broker.broker_settings import BrokerSettings
from actors.wire.properties_text import located_properties
from actors.wire.settings_text import names_by_key
from cluster.control.topology.topology import ADDRESS_KEYS
from store.common.text_file import read_text
from store.store_settings import StoreSettings

ENTRY_KEYS = {
    "brokerName": "name",
    "listenPort": "listen_port",
    "brokerIP1": "advertised_host",
    "bindAddress": "listen_host",
    "storePathRootDir": "store",
}
CLUSTER_KEY = "brokerClusterName"
NAMESERVERS_KEY = "namesrvAddr"
FLUSH_KEY = "flushDiskType"
DEFAULT_NAME = "broker-a"
METRICS_KEY = "metricsExporterType"
METRICS_PORT_KEY = "metricsPromExporterPort"
METRICS_OFF, METRICS_ON = ("disable", "0"), ("prom", "2")
METRICS_PORT = "5557"
"""RocketMQ's default of METRICS_PORT_KEY."""

_Accepts = Callable[[str], bool]


def _off(value: str) -> bool:
    return value.lower() in ("", "false")


def _is(*accepted: str) -> _Accepts:
    return lambda value: value.lower() in {each.lower() for each in accepted}


_OTHER_STORE = "it changes the store format, and RayMQ does not support the other format"
_NO_REPLICAS = "RayMQ does not support replicas yet: each broker is the only master of its group"
_OLD_ACCESS_CONTROL = (
    "RayMQ has the access control of RocketMQ 5: set authenticationEnabled and authorizationEnabled, and "
    "import plain_acl.yml (docs/security.md)"
)
_INLINE_KEYS = (
    "settings must not contain secrets: write the keys to a file of mode 0600 and set inner_credentials_file "
    "(docs/security.md)"
)

_OTHER_EXPORTER = (
    "RayMQ serves its metrics to Prometheus: use PROM, and let an OpenTelemetry collector scrape it "
    "(docs/operating.md)"
)

REFUSED: Mapping[str, tuple[_Accepts, str]] = {
    "storeType": (_is("default", ""), _OTHER_STORE),
    "enableConsumeQueueExt": (_off, _OTHER_STORE),
    "duplicationEnable": (_off, _OTHER_STORE),
    "rocksdbCQDoubleWriteEnable": (_off, _OTHER_STORE),
    "messageStorePlugIn": (_is(""), _OTHER_STORE),
    "enableDLegerCommitLog": (_off, _OTHER_STORE),
    "enableControllerMode": (_off, _NO_REPLICAS),
    "brokerRole": (_is("ASYNC_MASTER", ""), _NO_REPLICAS),
    "brokerId": (_is("0"), _NO_REPLICAS),
    "aclEnable": (_off, _OLD_ACCESS_CONTROL),
    "initAuthenticationUser": (_is(""), _INLINE_KEYS),
    "innerClientAuthenticationCredentials": (_is(""), _INLINE_KEYS),
    METRICS_KEY: (
        _is("", *METRICS_OFF, *METRICS_ON),
        _OTHER_EXPORTER,
    ),
}
"""Keys that must not be ignored: the values that are accepted, and the reason why others are refused."""

STORE_PLACES = {
    "storePathConsumeQueue": "consumequeue",
    "storePathIndex": "index",
    "storeCheckpoint": "checkpoint",
    "abortFile": "abort",
}
"""RocketMQ's default paths below the store root, the only ones that RayMQ supports."""


@dataclass
class BrokerConf:
    """The content of one file; `lines` are the line numbers of its keys."""

    file: str
    cluster: str | None = None
    entry: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def place(self, key: str) -> str:
        """Return file and line of a key."""
        return f"{self.file}:{self.lines[key]}" if key in self.lines else self.file


def read_broker_conf(path: Path) -> BrokerConf:
    """Read one file. Problems are collected in `errors`, each with file and line; raises nothing."""
    conf = BrokerConf(str(path))
    try:
        located = list(located_properties(read_text(path)))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        conf.errors.append(f"{path}: cannot be read: {error}")
        return conf
    values = {key: value.strip() for _, key, value in located}
    conf.lines = {key: line for line, key, _ in located}
    for key, value in values.items():
        _take(conf, key, value)
    _set_metrics_port(conf, values.get(METRICS_KEY, "").lower())
    _check_places(conf, values)
    conf.entry.setdefault("name", DEFAULT_NAME)
    if conf.settings:
        conf.entry["settings"] = conf.settings
    if FLUSH_KEY not in values:
        conf.warnings.append(
            f"{conf.file}: {FLUSH_KEY} is not set: RocketMQ's default is ASYNC_FLUSH, "
            "RayMQ uses the topology's `flush`"
        )
    return conf


def _take(conf: BrokerConf, key: str, value: str) -> None:
    if key in REFUSED:
        accepts, reason = REFUSED[key]
        if not accepts(value):
            shown = "…" if reason == _INLINE_KEYS else value
            conf.errors.append(f"{conf.place(key)}: {key}={shown} is not supported: {reason}")
    elif key == CLUSTER_KEY:
        conf.cluster = value
    elif key in ENTRY_KEYS:
        conf.entry[ENTRY_KEYS[key]] = int(value) if key == "listenPort" and value.isdecimal() else value
    elif key == NAMESERVERS_KEY:
        conf.warnings.append(
            f"{conf.place(key)}: {key}={value} is ignored: the broker registers with the topology's "
            "nameservers; clients must use those"
        )
    elif key in ADDRESS_KEYS:
        conf.errors.append(f"{conf.place(key)}: {key}: set it with the topology's key: {ADDRESS_KEYS[key]}")
    elif key in _setting_keys():
        conf.settings[key] = value
    elif key not in STORE_PLACES:
        near = difflib.get_close_matches(key, sorted({*_setting_keys(), *ENTRY_KEYS, CLUSTER_KEY}), 1, 0.85)
        hint = f"; did you mean {near[0]}?" if near else ""
        conf.warnings.append(f"{conf.place(key)}: {key} is ignored: RayMQ has no such setting{hint}")


def _set_metrics_port(conf: BrokerConf, exporter: str) -> None:
    if exporter in METRICS_OFF:
        conf.settings.pop(METRICS_PORT_KEY, None)
        conf.settings["metrics_port"] = "-1"
    elif exporter in METRICS_ON:
        conf.settings.setdefault(METRICS_PORT_KEY, METRICS_PORT)


def _setting_keys() -> set[str]:
    return names_by_key(BrokerSettings).keys() | names_by_key(StoreSettings).keys()


def _check_places(conf: BrokerConf, values: Mapping[str, str]) -> None:
    root = PurePosixPath(values.get("storePathRootDir", ""))
    for key, name in STORE_PLACES.items():
        if key in values and PurePosixPath(values[key]) != root / name:
            conf.errors.append(
                f"{conf.place(key)}: {key}={values[key]} is not supported: RayMQ stores it at "
                f"{root / name}; move it there and remove the key"
            )


def replace_brokers(data: dict[str, Any], confs: Sequence[BrokerConf]) -> None:
    """Replace the brokers of a topology with those of the files. Raises ValueError, one line per problem."""
    problems = [problem for conf in confs for problem in conf.errors]
    clusters = {conf.cluster: conf for conf in confs if conf.cluster is not None}
    if len(clusters) > 1:
        found = ", ".join(f"{name} ({conf.place(CLUSTER_KEY)})" for name, conf in clusters.items())
        problems.append(f"all brokers must have the same {CLUSTER_KEY}, but the files have {found}")
    if problems:
        raise ValueError("\n".join(problems))
    data["brokers"] = [conf.entry for conf in confs]
    if clusters:
        (data["cluster"],) = clusters
