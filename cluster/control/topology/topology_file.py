"""Reads a topology from YAML and `--set key=value`; errors have file, line, key path and remedy."""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from cluster.control.topology.broker_conf import (
    CLUSTER_KEY,
    ENTRY_KEYS,
    BrokerConf,
    read_broker_conf,
    replace_brokers,
)
from cluster.control.topology.problems import find_problems
from cluster.control.topology.replica_problems import replica_warnings
from cluster.control.topology.topology import (
    BROKER_TAG,
    ELASTIC_TAG,
    ElasticBrokers,
    KeyPath,
    Problem,
    SingleBroker,
    Topology,
    show,
)
from cluster.paths import home_of
from store.common.text_file import read_text

DEFAULT_TOPOLOGY = "configs/local.yaml"
SHIPPED = Path(__file__).parents[3] / "configs"
LISTS_BY_NAME = {"brokers": "name"}
SETTINGS: Mapping[str, str] = {
    "nameservers": "actors.nameserver.nameserver_settings:NameserverSettings",
    "brokers": "actors.broker.broker_settings:BrokerSettings",
    "rebalancers": "actors.rebalancer.rebalancer_settings:RebalancerSettings",
    "gateways": "actors.gateway.gateway_settings:GatewaySettings",
    "consoles": "cluster.console.console_settings:ConsoleSettings",
}
"""The settings of the entries of each list; imported only to explain a key that is at the wrong place."""
TAGGED_MODELS: Mapping[str | int, type[BaseModel]] = {BROKER_TAG: SingleBroker, ELASTIC_TAG: ElasticBrokers}


class TopologyError(Exception):
    """The topology is invalid; the message has one line per problem."""


@dataclass(frozen=True)
class Source:
    """Origin of a topology's values: file and line of each key, values from `broker.conf` files and `--set`.

    `warnings` are problems that do not prevent a start.
    """

    file: str
    lines: dict[KeyPath, int]
    overrides: dict[KeyPath, str]
    carried: dict[KeyPath, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def place(self, path: KeyPath) -> str:
        """Return the origin of the value at a key path, or of its closest parent: file:line, or `--set`."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.overrides:
                return f"--set {self.overrides[path[:length]]}"
            if path[:length] in self.carried:
                return self.carried[path[:length]]
            if path[:length] in self.lines:
                return f"{self.file}:{self.lines[path[:length]]}"
        return self.file

    def error(self, problems: Sequence[Problem]) -> TopologyError:
        """Return an error with one line per problem."""
        return TopologyError("\n".join(map(self.line, problems)))

    def line(self, problem: Problem) -> str:
        """Return the line that describes a problem."""
        path, text = problem
        return f"{self.place(path)}: {show(path) + ': ' if path else ''}{text}"


def load_topology(file: str | Path | None = None, overrides: Sequence[str] = ()) -> Topology:
    """Read a topology, apply overrides and validate it. Raises TopologyError."""
    return load_with_source(file, overrides)[0]


def load_with_source(
    file: str | Path | None = None, overrides: Sequence[str] = (), broker_confs: Sequence[str | Path] = ()
) -> tuple[Topology, Source]:
    """Return the topology as `load_topology` does, and the origin of its values.

    `broker_confs` are RocketMQ's `broker.conf` files, which replace the topology's brokers.
    """
    path = find_file(file)
    data, lines = read_yaml(path)
    source = Source(str(file or DEFAULT_TOPOLOGY), lines, {})
    if broker_confs:
        _replace_brokers(data, [read_broker_conf(Path(each)) for each in broker_confs], source)
    for override in overrides:
        apply_override(data, override, source)
    try:
        topology = Topology.model_validate(data)
    except ValidationError as error:
        raise source.error(explain_invalid(error, Topology)) from None
    if problems := find_problems(topology, home_of(topology.cluster)):
        raise source.error(problems)
    source.warnings.extend(map(source.line, replica_warnings(topology)))
    return topology, source


def _replace_brokers(data: dict[str, Any], confs: Sequence[BrokerConf], source: Source) -> None:
    try:
        replace_brokers(data, confs)
    except ValueError as error:
        raise TopologyError(str(error)) from None
    for index, conf in enumerate(confs):
        source.carried[("brokers", index)] = conf.file
        source.warnings.extend(conf.warnings)
        for key in conf.lines:
            source.carried[("brokers", index, ENTRY_KEYS.get(key, key))] = conf.place(key)
            source.carried[("brokers", index, "settings", key)] = conf.place(key)
            if key == CLUSTER_KEY:
                source.carried[("cluster",)] = conf.place(key)


def find_file(file: str | Path | None) -> Path:
    """Return the path of a topology file: as given, or in the `configs` directory of the installation.

    Raises TopologyError if the file does not exist.
    """
    path = Path(file or DEFAULT_TOPOLOGY)
    if path.is_file():
        return path
    shipped = SHIPPED / path.name
    if path.parts[:-1] in ((), ("configs",)) and shipped.is_file():
        return shipped
    raise TopologyError(f"{path}: no such file; pass a topology file, for example {DEFAULT_TOPOLOGY}")


def read_yaml(
    path: Path, kind: str = "a topology", example: str = DEFAULT_TOPOLOGY
) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    """Return the mapping in a YAML file, and the line of each key path.

    `kind` and `example` describe the expected file in errors. Raises TopologyError.
    """
    try:
        text = read_text(path)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise TopologyError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise TopologyError(f"{path}: cannot be read: {error}") from None
    if not isinstance(data, dict) or root is None:
        raise TopologyError(f"{path}: {kind} must be a mapping; see {example}")
    lines: dict[KeyPath, int] = {}
    problems: list[Problem] = []
    _note_lines(root, (), lines, problems)
    if problems:
        raise Source(str(path), lines, {}).error(problems)
    return data, lines


def _note_lines(node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int], problems: list[Problem]) -> None:
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*path, str(key.value))
            if inner in lines:
                problems.append((inner, f"duplicate key, first in line {lines[inner]}"))
            lines[inner] = key.start_mark.line + 1
            _note_lines(value, inner, lines, problems)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _note_lines(value, (*path, index), lines, problems)


def apply_override(data: dict[str, Any], override: str, source: Source) -> None:
    """Set the value of `override`, `key.path=value`, in `data` and note its origin. Raises TopologyError."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise TopologyError(f"--set {override}: use KEY=VALUE, for example --set flush=async")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = text
    parts = [part for part in re.split(r"[.\[\]]+", key.strip()) if part]
    place: Any = data
    path: KeyPath = ()
    for depth, part in enumerate(parts):
        step = _step(place, part, path, override)
        path = (*path, step)
        if depth == len(parts) - 1:
            place[step] = value
        elif isinstance(place, dict):
            place = place.setdefault(str(step), {})
        else:
            place = place[step]
    source.overrides[path] = override


def _step(place: Any, part: str, path: KeyPath, override: str) -> str | int:
    """Return the key or index for one part of a key path; list elements are selected by index or name."""
    if isinstance(place, dict):
        return part
    if not isinstance(place, list):
        raise TopologyError(f"--set {override}: {show(path)} is a single value and has no {part!r}")
    if part.isdigit() and int(part) < len(place):
        return int(part)
    label = LISTS_BY_NAME.get(str(path[-1])) if path else None
    names = [element.get(label) if isinstance(element, dict) else None for element in place]
    if label and part in names:
        return names.index(part)
    known = [str(index) for index in range(len(place))] + [str(name) for name in names if name]
    raise TopologyError(f"--set {override}: {show(path)} has no {part!r}; it has {', '.join(known)}")


def explain_invalid(error: ValidationError, model: type[BaseModel], at: KeyPath = ()) -> list[Problem]:
    """Convert pydantic's errors to problems; `at` is the key path of the model's data in the topology."""
    return [
        ((*at, *(part for part in found["loc"] if part not in TAGGED_MODELS)), _words(found, model, at))
        for found in error.errors()
    ]


def _words(found: Any, model: type[BaseModel], at: KeyPath) -> str:
    value, limits = found["input"], found.get("ctx", {})
    match found["type"]:
        case "extra_forbidden":
            known = _keys_at(model, found["loc"][:-1])
            places = _places_of(str(found["loc"][-1])) if at or model is Topology else []
            if places:
                return f"no such key here: it belongs to {' or '.join(places)}"
            near = difflib.get_close_matches(str(found["loc"][-1]), known, 1)
            return "no such key" + (
                f"; did you mean {near[0]!r}?" if near else f"; known keys: {', '.join(known)}"
            )
        case "missing":
            return "this key is required"
        case "greater_than_equal":
            return f"{value} is less than the minimum {limits['ge']}"
        case "less_than_equal":
            return f"{value} is greater than the maximum {limits['le']}"
        case "literal_error":
            return f"{value!r} is invalid: use {limits['expected']}"
        case "value_error":
            return str(limits["error"])
        case _:
            return f"{value!r}: {found['msg'][0].lower()}{found['msg'][1:]}"


def _places_of(key: str) -> list[str]:
    """Return the other places of a topology where a key is valid, in words."""
    found = ["the top of the topology"] if key in Topology.model_fields else []
    for name, path in SETTINGS.items():
        module, _, kind = path.partition(":")
        settings: type[BaseModel] = getattr(importlib.import_module(module), kind)
        entry = _model_in(Topology.model_fields[name].annotation)
        if entry is not None and key in entry.model_fields:
            found.append(f"an entry of `{name}`")
        if key in settings.model_fields:
            found.append(f"`settings` of an entry of `{name}`")
        store = settings.model_fields.get("store")
        inner = None if store is None else _model_in(store.annotation)
        if inner is not None and key in inner.model_fields:
            found.append(f"`store` in the `settings` of an entry of `{name}`")
    return found


def _keys_at(model: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """Return the keys of the model at a path inside `model`."""
    for part in path:
        if isinstance(part, str) and part in TAGGED_MODELS:
            model = TAGGED_MODELS[part]
            continue
        if isinstance(part, int) or part not in model.model_fields:
            continue
        inner = _model_in(model.model_fields[part].annotation)
        if inner is not None:
            model = inner
    return sorted(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        if (found := _model_in(inner)) is not None:
            return found
    return None
