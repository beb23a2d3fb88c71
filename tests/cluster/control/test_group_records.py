"""Records of promotions and of elastic stores, and the wait for a slave. Without Ray: its store is a dict."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from actors.host import store_binding
from actors.host.store_binding import StoreBinding
from cluster.control import bindings, fleet, pair_masters
from cluster.control.driver import Driver
from cluster.control.kinds import BROKER
from cluster.control.launch_errors import LaunchRefused
from cluster.control.launch_report import Reporter
from cluster.control.pair_masters import PairMaster
from cluster.control.plan import Running
from cluster.control.promotion import promote_replica
from cluster.control.specs import ActorSpec
from cluster.control.topology.topology import Topology
from cluster.control.topology.topology_file import Source, TopologyError

pytestmark = pytest.mark.usefixtures("stored")
NAMESPACE = "raymq"


def test_newer_record_of_a_group_is_copied_to_the_other_place(
    tmp_path: Path, stored: dict[str, bytes]
) -> None:
    pair_masters.save(tmp_path, NAMESPACE, "a", PairMaster(2, 1))
    stored["group:a"] = PairMaster(3, 0).encode()
    assert pair_masters.exchange(tmp_path, NAMESPACE) == {"a": PairMaster(3, 0)}
    stored.clear()  # a new Ray
    assert pair_masters.exchange(tmp_path, NAMESPACE) == {"a": PairMaster(3, 0)}
    assert stored["group:a"] == PairMaster(3, 0).encode()


@pytest.mark.parametrize(
    "data",
    ["", "{", "[]", "7", '{"epoch": "1", "replica": 0}', '{"epoch": 1, "replica": -1}', '{"term": 1}'],
)
def test_damaged_record_of_a_group_is_refused_with_file_and_remedy(tmp_path: Path, data: str) -> None:
    file = tmp_path / "groups" / "broker-a.json"
    file.parent.mkdir()
    file.write_text(data)
    with pytest.raises(LaunchRefused) as caught:
        pair_masters.exchange(tmp_path, NAMESPACE)
    assert f"{file} is damaged or unreadable (" in str(caught.value)
    assert 'write {"epoch": E, "replica": N}' in str(caught.value)
    assert file.read_text() == data


def test_damaged_record_of_a_group_in_ray_is_refused(tmp_path: Path, stored: dict[str, bytes]) -> None:
    stored["group:a"] = b"{"
    with pytest.raises(LaunchRefused, match="the key group:a of namespace raymq in Ray is damaged"):
        pair_masters.exchange(tmp_path, NAMESPACE)


def test_damaged_copy_of_a_binding_is_refused_with_file_and_remedy(tmp_path: Path) -> None:
    file = tmp_path / "elastic" / "broker-1-0.json"
    file.parent.mkdir()
    file.write_text("{")
    with pytest.raises(LaunchRefused, match=r"broker-1-0\.json is damaged .*: restore it from a backup, or"):
        bindings.exchange(tmp_path, NAMESPACE)
    assert store_binding.find_all(NAMESPACE) == {}


def test_binding_in_ray_is_valid_and_a_new_ray_gets_the_copy(
    tmp_path: Path, stored: dict[str, bytes]
) -> None:
    old, new = StoreBinding("10.0.0.1", "/old"), StoreBinding("10.0.0.2", "/new")
    store_binding.save(NAMESPACE, "broker-1-0", old)
    bindings.exchange(tmp_path, NAMESPACE)
    store_binding.save(NAMESPACE, "broker-1-0", new)
    assert bindings.exchange(tmp_path, NAMESPACE) == {"broker-1-0": new}
    stored.clear()
    bindings.exchange(tmp_path, NAMESPACE)
    assert store_binding.find_all(NAMESPACE) == {"broker-1-0": new}


def status_of(spec: ActorSpec, **details: object) -> dict[str, object]:
    return {"spec": spec.to_json(), "state": "serving", "details": details}


def slave() -> ActorSpec:
    settings = {"broker_name": "a", "role": "slave"}
    return ActorSpec(BROKER, "a-1", "C", settings, ("h", 1), ("h", 1), "r", "/s")


def answering(status: dict[str, object]) -> Callable[..., dict[str, object]]:
    return lambda *_: status


def test_wait_for_a_slave_ends_when_its_replication_has_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "stopped: the CommitLog differs from the master's at offset 7"
    monkeypatch.setattr(fleet, "observe", lambda _: [])
    monkeypatch.setattr(
        fleet, "actor_status", answering(status_of(slave(), replication_state=reason, written=9))
    )
    assert fleet.wait_in_sync(NAMESPACE, slave(), timeout_s=1e9) == reason


def test_wait_for_a_slave_says_which_tables_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    details = {"replication_state": "following", "written": 9, "missing_tables": "GET_QUEUE_ENDS"}
    monkeypatch.setattr(fleet, "observe", lambda _: [])
    monkeypatch.setattr(fleet, "actor_status", answering(status_of(slave(), **details)))
    reason = fleet.wait_in_sync(NAMESPACE, slave(), timeout_s=0)
    assert reason == "following, its log ends at 9, it lacks GET_QUEUE_ENDS"


def test_slave_without_the_ends_of_queues_is_not_promoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: dict[str, bytes]
) -> None:
    monkeypatch.setenv("RAYMQ_HOME", str(tmp_path))
    topology = Topology.model_validate(
        {"brokers": [{"name": "a", "replicas": 2, "replication": "sync", "replicas_on_one_node": True}]}
    )
    details = {"written": 9, "missing_tables": "GET_QUEUE_ENDS"}
    running = Running(topology.namespace, "a-1", slave(), "serving", details=details)
    monkeypatch.setattr(fleet, "observe", lambda _: [running])
    monkeypatch.setattr(Driver, "connected", lambda _: nullcontext())
    driver = Driver(topology, Source("t.yaml", {}, {}), Reporter())
    with pytest.raises(LaunchRefused, match="a-1 has just joined, and has not copied GET_QUEUE_ENDS"):
        promote_replica(driver, "a-1", lambda: None)
    assert stored == {}


@pytest.mark.parametrize("previous", [None, PairMaster(4, 0)])
@pytest.mark.parametrize(
    "error", [LaunchRefused("the HA port is in use"), TopologyError("t.yaml:1: invalid")]
)
def test_refused_promotion_restores_the_record(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stored: dict[str, bytes],
    previous: PairMaster | None,
    error: Exception,
) -> None:
    """Otherwise the next `raymq up` would promote the replica."""
    monkeypatch.setenv("RAYMQ_HOME", str(tmp_path))
    topology = Topology.model_validate(
        {"brokers": [{"name": "a", "replicas": 2, "replication": "async", "replicas_on_one_node": True}]}
    )
    running = Running(topology.namespace, "a-1", slave(), "serving", details={"written": 9})
    monkeypatch.setattr(fleet, "observe", lambda _: [running])
    monkeypatch.setattr(Driver, "connected", lambda _: nullcontext())
    recorded: list[PairMaster] = []

    def refuse(driver: Driver, *_: object) -> None:
        recorded.append(pair_masters.exchange(driver.home, topology.namespace)["a"])
        raise error

    monkeypatch.setattr(Driver, "plan", refuse)
    driver = Driver(topology, Source("t.yaml", {}, {}), Reporter())
    if previous is not None:
        pair_masters.save(driver.home, topology.namespace, "a", previous)
    with pytest.raises(type(error), match=str(error)):
        promote_replica(driver, "a-1", lambda: None)
    before = previous or PairMaster()
    assert recorded == [PairMaster(before.epoch + 1, 1)]
    assert pair_masters.exchange(driver.home, topology.namespace) == {"a": before}
    stored.clear()  # a new Ray
    assert pair_masters.exchange(driver.home, topology.namespace).get("a", PairMaster()) == before
