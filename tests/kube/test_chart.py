"""The chart of Kubernetes: topology, pods, Services and metrics fit each other, and Kubernetes accepts it."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from actors.host.ray_port import Node
from benchmarks.experiments.experiment import load_experiment
from cluster.control.exposure import exposed
from cluster.control.kinds import make_specs
from cluster.control.placement import RayAutoscaler, place
from cluster.control.scrape_targets import targets_of
from cluster.control.specs import ActorSpec
from cluster.control.topology.topology import Topology
from cluster.control.topology.topology_file import load_with_source
from tests.kube.charts import (
    CHART,
    RELEASE,
    RENDERED,
    VALUES,
    Document,
    all_of,
    container_of,
    groups_of,
    labels_of,
    named,
    rendered,
)

SCHEMAS = Path(__file__).parent / "schemas"
BUILD_TIMEOUT_S = 3600
HELM = "helm.sh/helm/v3/cmd/helm@v3.22.0"
HEAD_IP = "10.0.0.1"


@dataclass(frozen=True)
class Chart:
    """A rendered chart: its documents, its topology and actors, and the types of nodes that its pods are."""

    documents: list[Document]
    topology: Topology
    specs: list[ActorSpec]
    node_types: dict[str, Any]

    @property
    def groups(self) -> dict[str, Document]:
        return groups_of(self.documents)

    def group_of(self, spec: ActorSpec) -> str:
        """Return the group of pods in which an actor runs."""
        types = self.node_types.items()
        return next((name for name, each in types if spec.resource in each["resources"]), "headgroup")


def read_chart(values: str, folder: Path) -> Chart:
    """Return a chart, whose topology is checked as by `raymq up` on the nodes that the pods are."""
    documents = rendered(values)
    file = folder / "topology.yaml"
    file.write_text(named(documents, "ConfigMap")["data"][file.name])
    topology, source = load_with_source(file)
    nodes = [Node(HEAD_IP, {"node:__internal_head__": 1, f"node:{HEAD_IP}": 1}, is_head=True)]
    types = autoscaling_config(documents)["available_node_types"]
    nodes += [
        Node(f"10.0.0.{number}", types[name]["resources"], is_head=False)
        for number, name in enumerate(types, 2)
        if name != "headgroup"
    ]
    placement = place(topology, nodes, RayAutoscaler(is_running=True))
    assert not [*exposed(topology), *placement.problems]
    return Chart(documents, topology, make_specs(topology, folder, placement.resources, source), types)


def autoscaling_config(documents: list[Document]) -> dict[str, Any]:
    """Return what Ray's autoscaler reads from the RayCluster."""
    from ray.autoscaler._private.kuberay import autoscaling_config as converter

    cluster = named(documents, "RayCluster")
    given = {**cluster, "metadata": {**cluster["metadata"], "namespace": "default"}}  # set by Kubernetes
    return dict(converter._derive_autoscaling_config_from_ray_cr(given))  # noqa: SLF001 - no public one


@pytest.fixture(scope="module", params=VALUES)
def chart(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Chart:
    return read_chart(request.param, tmp_path_factory.mktemp("chart"))


def test_services_lead_to_the_ports_of_the_actors(chart: Chart) -> None:
    services = all_of(chart.documents, "Service")
    elastic = {member.actor_name(0) for _, entry in chart.topology.elastic() for member in entry.members()}
    for spec in chart.specs:
        if spec.kind.probe is None or spec.name in elastic:
            continue
        name = spec.name.rpartition("-")[0]
        service = services.pop(f"{RELEASE}-{name}")["spec"]
        group = chart.group_of(spec)
        assert service["selector"].items() <= labels_of(group).items()
        (port,) = service["ports"]
        assert port["targetPort"] == spec.listen[1]
        ports = {each["containerPort"] for each in container_of(chart.groups[group])["ports"]}
        assert spec.listen[1] in ports
        inside = (f"{RELEASE}-{name}.default.svc", port["port"])
        outside = ("raymq.example.com", port.get("nodePort"))
        is_outside = service["type"] == "NodePort" and spec.kind.name == "broker"
        assert spec.advertised == (outside if is_outside else inside)
        if service["type"] == "NodePort" and spec.kind.name == "nameserver":
            assert spec.settings["receiver_addresses"][0] == "{}:{}".format(*outside)
    assert services == {}


def test_each_fixed_broker_has_a_pod_and_a_volume_of_its_own(chart: Chart) -> None:
    groups, claims = chart.groups, all_of(chart.documents, "PersistentVolumeClaim")
    brokers = {spec.name: spec for spec in chart.specs if spec.kind.name == "broker" and not spec.slots}
    assert set(groups) - {"headgroup", "elastic"} == {name.removesuffix("-0") for name in brokers}
    for name, spec in brokers.items():
        group = groups[chart.group_of(spec)]
        assert group["groupName"] == name.removesuffix("-0")
        assert group["replicas"] == group["minReplicas"] == group["maxReplicas"] == 1
        assert str(spec.store).startswith(mounts_of(group)["data"] + "/")
    used = [claim_of(group) for group in groups.values()]
    assert sorted(used) == sorted(claims)
    modes = {name: each["spec"]["accessModes"] for name, each in claims.items()}
    shared = {f"{RELEASE}-elastic": ["ReadWriteMany"]} if "elastic" in groups else {}
    assert modes == {name: ["ReadWriteOnce"] for name in used} | shared
    assert all(
        each["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for each in claims.values()
    )


def mounts_of(group: Document) -> dict[str, str]:
    return {each["name"]: each["mountPath"] for each in container_of(group)["volumeMounts"]}


def claim_of(group: Document) -> str:
    volumes = {each["name"]: each for each in group["template"]["spec"]["volumes"]}
    return str(volumes["data"]["persistentVolumeClaim"]["claimName"])


def test_files_of_the_settings_are_mounted_from_secrets(chart: Chart) -> None:
    groups = chart.groups
    for group in groups.values():
        volumes = {each["name"] for each in group["template"]["spec"]["volumes"]}
        assert set(mounts_of(group)) == volumes
    files = {
        (chart.group_of(spec), Path(value))
        for spec in chart.specs
        for key, value in spec.settings.items()
        if key in ("inner_credentials_file", "metrics_token_file") or key.startswith("tls_")
    }
    files |= {
        ("headgroup", Path(each["value"]))
        for each in container_of(groups["headgroup"])["env"]
        if each["name"] in ("RAYMQ_CREDENTIALS", "RAYMQ_TLS_CA")
    }
    assert bool(files) != chart.topology.insecure
    for group, file in files:
        assert str(file.parent) in mounts_of(groups[group]).values()
        if file.parent.name == "keys":  # a copy of mode 0600
            (copy,) = groups[group]["template"]["spec"]["initContainers"]
            assert copy["command"][-1] == str(file)


def test_each_process_is_scraped_and_probed_at_its_port_of_metrics(chart: Chart) -> None:
    ports: dict[str, set[int]] = {name: set() for name in chart.groups}
    for spec, target in zip(chart.specs, targets_of(chart.specs), strict=True):
        ports[chart.group_of(spec)].add(int(target["targets"][0].rpartition(":")[2]))
    for name, group in chart.groups.items():
        container = container_of(group)
        by_name = {each["name"]: each["containerPort"] for each in container["ports"]}
        metrics = {port for key, port in by_name.items() if key.startswith("m-")}
        assert metrics == ports[name]
        for monitor in all_of(chart.documents, "PodMonitor").values():
            scraped = {each["port"] for each in monitor["spec"]["podMetricsEndpoints"]}
            assert {key for key in by_name if key.startswith("m-")} <= scraped
        if name != "headgroup":
            get, command = (
                container["readinessProbe"]["httpGet"],
                container["livenessProbe"]["exec"]["command"],
            )
            assert (get["path"], {by_name[get["port"]]}) == ("/healthz", metrics)
            assert Path(command[1]).name in named(chart.documents, "ConfigMap")["data"]
            assert {int(command[2])} == metrics


def test_network_policy_opens_the_ports_of_clients_and_metrics_only(chart: Chart) -> None:
    if chart.topology.insecure:
        assert all_of(chart.documents, "NetworkPolicy") == {}
        return
    _, of_all = named(chart.documents, "NetworkPolicy")["spec"]["ingress"]
    opened = {
        port
        for each in of_all["ports"]
        for port in range(each["port"], each.get("endPort", each["port"]) + 1)
    }
    metrics = {int(each["targets"][0].rpartition(":")[2]) for each in targets_of(chart.specs)}
    clients = {spec.listen[1] for spec in chart.specs if spec.kind.name not in ("rebalancer", "autoscaler")}
    assert metrics | clients <= opened
    assert not opened & {6379, 8265, 10001, 9880}


@pytest.mark.parametrize("experiment", ["step", "daily", "burst"])
def test_node_types_are_those_of_the_experiments(experiment: str) -> None:
    documents = rendered("values-elastic")
    config = autoscaling_config(documents)
    types = config["available_node_types"]
    (node,) = load_experiment(experiment).node_types.values()
    assert types["elastic"]["resources"].items() >= node.resources.items()
    assert types["elastic"]["max_workers"] == node.max
    assert {each["resources"]["CPU"] for each in types.values()} == {0}
    assert config["idle_timeout_minutes"] == 1


def test_elastic_brokers_of_the_topology_are_those_of_their_group(tmp_path: Path) -> None:
    chart = read_chart("values-elastic", tmp_path)
    ((_, brokers),) = chart.topology.elastic()
    group = chart.groups["elastic"]
    assert (brokers.min, brokers.max) == (group["minReplicas"], group["maxReplicas"])
    ports = {each["containerPort"] for each in container_of(group)["ports"]}
    assert {brokers.broker(number).listen_port for number in range(1, brokers.max + 1)} <= ports


@functools.cache
def helm(folder: Path) -> str:
    """Return the command of Helm; skip the test if it is not installed and cannot be built."""
    if found := shutil.which("helm"):
        return found
    if shutil.which("go") is None:
        pytest.skip("neither Helm nor Go is installed")
    environment = {**os.environ, "GOBIN": str(folder)}
    done = subprocess.run(["go", "install", HELM], env=environment, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"`go install {HELM}` failed: {done.stderr[-300:]}")
    return str(folder / "helm")


def render(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [command, "template", RELEASE, CHART, *arguments], capture_output=True, text=True, check=False
    )


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.timeout(BUILD_TIMEOUT_S)
def test_rendered_files_are_current(tmp_path_factory: pytest.TempPathFactory) -> None:
    command = helm(tmp_path_factory.getbasetemp() / "helm")
    for values in VALUES:
        done = render(command, "-f", str(CHART / f"{values}.yaml"))
        assert done.returncode == 0, done.stderr
        assert done.stdout == (RENDERED / f"{values}.yaml").read_text(), (
            f"run `helm template {RELEASE} {CHART} -f {CHART}/{values}.yaml > {RENDERED}/{values}.yaml`"
        )


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.timeout(BUILD_TIMEOUT_S)
def test_values_that_cannot_work_are_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    command = helm(tmp_path_factory.getbasetemp() / "helm")
    for arguments, problem in (
        (["--set", "elastic.max=1,tls.secret=raymq-tls"], "no client outside reaches"),
        (["--set", "external.type=NodePort"], "external.nameserver.host is the address"),
        (
            ["--set", "external.type=LoadBalancer,external.nameserver.host=a"],
            "external.brokers.broker-a is missing",
        ),
    ):
        done = render(command, *arguments)
        assert done.returncode != 0
        assert problem in done.stderr


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.timeout(BUILD_TIMEOUT_S)
def test_schemas_accept_the_chart_and_find_wrong_keys_and_types(tmp_path: Path) -> None:
    if shutil.which("go") is None:
        pytest.skip("Go is not installed")
    program = tmp_path / "schemas"
    subprocess.run(["go", "build", "-o", program, "."], cwd=SCHEMAS, check=True)

    def validate(manifest: str) -> str:
        return subprocess.run([program], input=manifest, text=True, stdout=subprocess.PIPE).stdout

    for values in VALUES:
        assert validate((RENDERED / f"{values}.yaml").read_text()) == ""
    manifest = (RENDERED / "values-elastic.yaml").read_text()
    for right, wrong, problem in (
        ("idleTimeoutSeconds:", "idleTimeoutSecs:", 'unknown field "idleTimeoutSecs"'),
        ("volumeMounts:", "volumeMount:", 'unknown field "volumeMount"'),
        ("maxReplicas: 4", 'maxReplicas: "4"', "cannot unmarshal string into Go"),
        ("targetPort:", "targetPorts:", 'unknown field "targetPorts"'),
        ("strategy:", "strategies:", 'unknown field "strategies"'),
        ("endPort: 10941", "endPort: x", "cannot unmarshal string into Go"),
        ("podMetricsEndpoints:", "endpoints:", 'unknown field "endpoints"'),
        ("storageClassName:", "storageClass:", 'unknown field "storageClass"'),
        (
            "m-autoscaler, containerPort",
            "metrics-autoscaler, containerPort",
            "metrics-autoscaler: must be no more",
        ),
        ("name: raymq-broker-a\n", "name: raymq_broker\n", "raymq_broker: a lowercase RFC 1123"),
        ("kind: PodMonitor", "kind: PodMonitors", "unknown kind"),
    ):
        assert right in manifest
        assert problem in validate(manifest.replace(right, wrong))
