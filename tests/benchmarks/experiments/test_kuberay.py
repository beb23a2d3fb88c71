"""The manifest for Kubernetes: its node types, its topology, and the checks of the KubeRay operator."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from actors.host.ray_port import Node
from benchmarks.experiments.experiment import load_experiment
from cluster.control.exposure import exposed
from cluster.control.kinds import make_specs
from cluster.control.placement import RayAutoscaler, place
from cluster.control.topology.topology_file import load_with_source

MANIFEST = Path("configs/kuberay/raymq.yaml")
OPERATOR = Path(__file__).parent / "kuberay"
BUILD_TIMEOUT_S = 1200


@pytest.fixture
def documents() -> dict[str, Any]:
    return {each["kind"]: each for each in yaml.safe_load_all(MANIFEST.read_text())}


def group_of_brokers(documents: dict[str, Any]) -> dict[str, Any]:
    (group,) = documents["RayCluster"]["spec"]["workerGroupSpecs"]
    return dict(group)


def autoscaling_config(documents: dict[str, Any]) -> dict[str, Any]:
    """Return what Ray's autoscaler reads from the RayCluster."""
    from ray.autoscaler._private.kuberay import autoscaling_config as converter

    cluster = documents["RayCluster"]
    cluster["metadata"]["namespace"] = "default"  # set by Kubernetes
    return dict(converter._derive_autoscaling_config_from_ray_cr(cluster))  # noqa: SLF001 - no public one


@pytest.mark.parametrize("experiment", ["step", "daily", "burst"])
def test_node_types_are_those_of_the_experiments(documents: dict[str, Any], experiment: str) -> None:
    config = autoscaling_config(documents)
    types = config["available_node_types"]
    for name, node in load_experiment(experiment).node_types.items():
        assert types[name]["resources"].items() >= node.resources.items()
        assert types[name]["max_workers"] == node.max
    assert types["headgroup"]["resources"]["CPU"] == types["broker"]["resources"]["CPU"] == 0
    assert config["idle_timeout_minutes"] == 1


def test_topology_fits_the_pods_and_their_volumes(documents: dict[str, Any], tmp_path: Path) -> None:
    cluster, job = documents["RayCluster"], documents["RayJob"]
    group, name = group_of_brokers(documents), cluster["metadata"]["name"]
    file = tmp_path / "topology.yaml"
    file.write_text(documents["ConfigMap"]["data"][file.name])
    topology, source = load_with_source(file)
    head = Node("10.0.0.1", {"node:__internal_head__": 1, "node:10.0.0.1": 1}, is_head=True)
    worker = Node("10.0.0.2", {}, is_head=False)
    placement = place(topology, [head, worker], RayAutoscaler(is_running=True))
    specs = make_specs(topology, tmp_path, placement.resources, source)
    ((_, brokers),) = topology.elastic()
    # the topology can be started on these pods
    assert not [*exposed(topology), *placement.problems]
    assert (brokers.min, brokers.max) == (group["minReplicas"], group["maxReplicas"])
    assert brokers.resource in autoscaling_config(documents)["available_node_types"]["broker"]["resources"]
    # clients find the head by its service, and the operator opens the ports in it
    (ray,) = cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"]
    ports = {each["containerPort"] for each in ray["ports"]}
    fixed = [spec for spec in specs if spec.kind.name in ("nameserver", "rebalancer")]
    assert {spec.advertised[0] for spec in fixed} == {f"{name}-head-svc"}
    assert {spec.advertised[1] for spec in fixed} <= ports
    # the stores and the home directory are on the shared volume, and the job finds the topology
    mounts = {each["name"]: each["mountPath"] for each in ray["volumeMounts"]}
    for container in (ray, *group["template"]["spec"]["containers"]):
        assert {"name": "raymq", "mountPath": mounts["raymq"]} in container["volumeMounts"]
    assert documents["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteMany"]
    assert all(spec.store.startswith(mounts["raymq"]) for spec in specs if spec.store)
    assert {each["name"]: each["value"] for each in ray["env"]}["RAYMQ_HOME"].startswith(mounts["raymq"])
    assert job["spec"]["clusterSelector"] == {"ray.io/cluster": name}
    assert job["spec"]["entrypoint"].split()[-2:] == ["cluster.launch", f"{mounts['topology']}/{file.name}"]


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.timeout(BUILD_TIMEOUT_S)
def test_operator_accepts_the_manifest_and_finds_wrong_keys_and_types(tmp_path: Path) -> None:
    if shutil.which("go") is None:
        pytest.skip("Go is not installed")
    program = tmp_path / "validate"
    subprocess.run(["go", "build", "-o", program, "."], cwd=OPERATOR, check=True)

    def validate(manifest: str) -> str:
        return subprocess.run([program], input=manifest, text=True, stdout=subprocess.PIPE).stdout

    manifest = MANIFEST.read_text()
    assert validate(manifest) == ""
    for right, wrong, problem in (
        ("idleTimeoutSeconds:", "idleTimeoutSecs:", 'unknown field "idleTimeoutSecs"'),
        ("volumeMounts:", "volumeMount:", 'unknown field "volumeMount"'),
        (
            "maxReplicas: 4",
            'maxReplicas: "4"',
            "cannot unmarshal string into Go",
        ),
        ("clusterSelector:", "selector:", 'unknown field "selector"'),
        ("    ray.io/cluster: raymq\n", "    {}\n", "RayClusterSpec or ClusterSelector must be set"),
    ):
        assert right in manifest
        assert problem in validate(manifest.replace(right, wrong))
