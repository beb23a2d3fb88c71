"""Records and stores of the Raft groups of a topology. Without Ray: its key-value store is a dict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.access.access_file import FILE_NAME
from actors.host.ray_port import Node
from actors.raft.term_file import TERM_FILE
from cluster.control.kinds import make_specs
from cluster.control.launch_errors import LaunchRefused
from cluster.control.new_stores import NewStore, check_first_members, create_joining_stores
from cluster.control.raft_groups import FOLDER, RaftGroups, SavedRaftGroup, exchange, save
from cluster.control.specs import ActorSpec
from cluster.control.topology.topology import Topology
from cluster.control.topology.topology_file import Source
from store.common.clock import SystemClock
from store.message_store import MessageStore
from store.ownership.identity import StoreIdentity, read_name
from store.store_settings import StoreSettings
from tests.store.conftest import a_draft

pytestmark = pytest.mark.usefixtures("stored")
NAMESPACE = "raymq"
ENTRY = {"name": "a", "replicas": 3, "replication": "raft", "replicas_on_one_node": True}
SMALL = {"store": {"commit_log_file_bytes": 1 << 20}}
NODES = [Node("10.0.0.1", {"x": 1}, is_head=True), Node("10.0.0.2", {"y": 1}, is_head=False)]
MEMBERS = ["1@127.0.0.1:10911", "2@127.0.0.1:10921", "3@127.0.0.1:10931"]
RECORD = SavedRaftGroup(tuple(MEMBERS))


def here(resource: str, function: Callable[[Any], Any], argument: object) -> Any:
    return function(argument)


def groups(home: Path, *joining: str) -> RaftGroups:
    return RaftGroups(home, NAMESPACE, here, joining)


def topology(**keys: Any) -> Topology:
    return Topology.model_validate({"brokers": [{**ENTRY, **keys}], "broker_settings": SMALL})


def settled(
    home: Path, given: Topology, resources: Mapping[str, str] | None = None, *joining: str
) -> tuple[RaftGroups, list[ActorSpec]]:
    """Return the groups of a topology, and the specs of its replicas."""
    found = groups(home, *joining)
    of_all = {name: "x" for _, name, _ in given.listeners()} | (resources or {})
    topology = found.settle(given, of_all, NODES)
    specs = make_specs(topology, home, of_all, Source("t.yaml", {}, {}))
    return found, [spec for spec in specs if spec.kind.name == "broker"]


def members(specs: Sequence[ActorSpec]) -> list[str]:
    """Return the members, which must be the same for all replicas."""
    (found,) = {tuple(spec.settings["raft_members"]) for spec in specs}
    return list(found)


def open_store(home: Path, replica: int) -> MessageStore:
    settings = StoreSettings.model_validate(SMALL["store"])
    identity = StoreIdentity("DefaultCluster", "a", replica)
    return MessageStore.open(home / "store" / f"a-{replica}", settings, identity, SystemClock())


def test_new_group_gets_stores_that_the_next_run_finds(tmp_path: Path, stored: dict[str, bytes]) -> None:
    found, specs = settled(tmp_path, topology())
    assert not (tmp_path / "store").exists()  # as with --dry-run
    found.form(specs)
    names = [read_name(tmp_path / "store" / f"a-{replica}") for replica in range(3)]
    ids = [name.store_id for name in names if name is not None]
    assert members(specs) == [f"{ids[n]}@127.0.0.1:{10911 + 10 * n}" for n in range(3)]
    for replica in range(3):
        open_store(tmp_path, replica).close()
    stored.clear()  # a new Ray
    assert members(settled(tmp_path, topology())[1]) == members(specs)


def test_store_that_exists_keeps_its_id(tmp_path: Path) -> None:
    """Also after a run that was killed before it recorded the group."""
    store = open_store(tmp_path, 1)
    store.close()
    found, specs = settled(tmp_path, topology())
    assert members(specs)[1].startswith(f"{store.identity.store_id}@")
    found.form(specs)
    assert members(settled(tmp_path, topology())[1]) == members(specs)


def test_lost_store_of_a_recorded_group_is_not_created_again(tmp_path: Path) -> None:
    save(tmp_path, NAMESPACE, "a", RECORD)
    found, specs = settled(tmp_path, topology())
    found.form(specs)
    assert members(specs) == MEMBERS
    assert not (tmp_path / "store").exists()


def test_lost_store_of_a_group_whose_record_is_lost_is_refused(tmp_path: Path) -> None:
    for replica in range(2):
        open_store(tmp_path, replica).close()
        (tmp_path / "store" / f"a-{replica}" / TERM_FILE).write_text("{}")
    with pytest.raises(LaunchRefused, match=r"a-2 has no store: restore it, or the record raft-groups/a"):
        settled(tmp_path, topology())


def test_store_with_messages_of_a_single_broker_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path, 0)
    store.append(a_draft())
    store.close()
    with pytest.raises(LaunchRefused, match=r"a-0 has messages from before the group.*raymq migrate a"):
        settled(tmp_path, topology())


def test_changed_address_is_recorded(tmp_path: Path) -> None:
    save(tmp_path, NAMESPACE, "a", RECORD)
    found, specs = settled(tmp_path, topology(listen_port=4000))
    assert members(specs) == ["1@127.0.0.1:4000", "2@127.0.0.1:4010", "3@127.0.0.1:4020"]
    found.form(specs[:1])
    assert b"127.0.0.1:4020" in (tmp_path / FOLDER / "a.json").read_bytes()


def test_replica_that_does_not_run_keeps_its_free_port_while_others_run(tmp_path: Path) -> None:
    save(tmp_path, NAMESPACE, "a", RECORD)
    free = topology(listen_port=0)
    assert groups(tmp_path).ports(free, ["a-1"]) == {"a-0": 10911, "a-1": 10921, "a-2": 10931}
    assert groups(tmp_path).ports(free, ["b-0"]) == {}


def test_address_of_a_replica_is_that_of_its_node(tmp_path: Path) -> None:
    save(tmp_path, NAMESPACE, "a", RECORD)
    on_nodes = topology(listen_host="node", resources=["x", "y", "gone"], replicas_on_one_node=False)
    _, specs = settled(tmp_path, on_nodes, {"a-0": "x", "a-1": "y", "a-2": "gone"})
    assert members(specs) == ["1@10.0.0.1:10911", "2@10.0.0.2:10921", MEMBERS[2]]


def test_unknown_address_of_a_new_replica_is_refused(tmp_path: Path) -> None:
    on_nodes = topology(listen_host="node", resources=["x", "y", "gone"], replicas_on_one_node=False)
    with pytest.raises(LaunchRefused, match="a-2 has listen_host: node, but its resource is not on exactly"):
        settled(tmp_path, on_nodes, {"a-0": "x", "a-1": "y", "a-2": "gone"})


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"replication": "async"}, "a is a Raft group of 3 replicas"),
        ({"replicas": 1, "replication": None}, "a is a Raft group of 3 replicas"),
    ],
    ids=["slaves", "single"],
)
def test_topology_that_contradicts_the_record_is_refused(
    tmp_path: Path, keys: dict[str, Any], text: str
) -> None:
    save(tmp_path, NAMESPACE, "a", RECORD)
    (problem,) = groups(tmp_path).problems(topology(**keys))
    assert text in problem
    assert groups(tmp_path).problems(topology()) == []


def test_replica_that_joins_again_gets_no_list_from_then_on(tmp_path: Path) -> None:
    save(tmp_path, NAMESPACE, "a", RECORD)
    found, specs = settled(tmp_path, topology(), None, "a-1")
    assert [each.settings["raft_members"] for each in specs] == [MEMBERS, [], MEMBERS]
    assert exchange(tmp_path, NAMESPACE) == {"a": RECORD}  # as with --dry-run
    found.form(specs[1:2])
    assert exchange(tmp_path, NAMESPACE) == {"a": replace(RECORD, joined=(1,))}
    _, specs = settled(tmp_path, topology())
    assert [each.settings["raft_members"] for each in specs] == [MEMBERS, [], MEMBERS]


def test_replica_that_cannot_join_again_is_refused(tmp_path: Path) -> None:
    assert groups(tmp_path, "a-1").problems(topology()) == [
        "'a-1' is not a replica of a Raft group that runs; replicas: none"
    ]
    save(tmp_path, NAMESPACE, "a", RECORD)
    assert groups(tmp_path, "a-1").problems(topology()) == []
    (problem,) = groups(tmp_path, "a-7").problems(topology())
    assert "'a-7' is not a replica" in problem
    assert "replicas: a-0, a-1, a-2" in problem


def test_replica_that_is_added_to_the_topology_joins_the_group(tmp_path: Path) -> None:
    save(tmp_path, NAMESPACE, "a", RECORD)
    _, specs = settled(tmp_path, topology(replicas=4))
    assert [each.settings["raft_members"] for each in specs] == [MEMBERS, MEMBERS, MEMBERS, []]
    assert specs[3].settings["replica"] == 3


def test_group_whose_members_were_removed_keeps_its_list(tmp_path: Path) -> None:
    five = SavedRaftGroup((*MEMBERS, "4@127.0.0.1:10941", "5@127.0.0.1:10951"))
    save(tmp_path, NAMESPACE, "a", five)
    found, specs = settled(tmp_path, topology())
    assert members(specs) == list(five.members)
    assert found.problems(topology()) == []


@pytest.mark.parametrize(
    "data",
    [
        "",
        "{",
        "[]",
        "7",
        '{"members": []}',
        '{"members": [1]}',
        '{"members": ["h:1"]}',
        '{"members": ["1@h"]}',
        '{"members": ["1@h:1"], "joined": ["1"]}',
        '{"members": ["1@h:1"], "without_store": [true]}',
    ],
)
def test_damaged_record_is_refused_with_file_and_remedy(tmp_path: Path, data: str) -> None:
    file = tmp_path / FOLDER / "a.json"
    file.parent.mkdir()
    file.write_text(data)
    with pytest.raises(LaunchRefused, match=r"a\.json is damaged or unreadable .*restore it from a backup"):
        groups(tmp_path)
    assert file.read_text() == data


def test_damaged_record_in_ray_is_refused(tmp_path: Path, stored: dict[str, bytes]) -> None:
    stored["raft-group:a"] = b"{"
    with pytest.raises(LaunchRefused, match="the key raft-group:a of namespace raymq in Ray is damaged"):
        groups(tmp_path)


def migrating(home: Path) -> tuple[RaftGroups, list[ActorSpec]]:
    found = RaftGroups(home, NAMESPACE, here, migrating="a")
    of_all = {name: "x" for _, name, _ in topology().listeners()}
    settled = found.settle(topology(), of_all, NODES)
    specs = make_specs(settled, home, of_all, Source("t.yaml", {}, {}))
    return found, [spec for spec in specs if spec.kind.name == "broker"]


def test_broker_that_becomes_a_group_is_its_first_member(tmp_path: Path) -> None:
    store = open_store(tmp_path, 0)
    store.append(a_draft())
    store.close()
    open_store(tmp_path, 1).close()  # that of a slave, which is set aside
    found, specs = migrating(tmp_path)
    listed = members(specs)
    assert listed[0].startswith(f"{store.identity.store_id}@")
    group = found.bootstrap("a")
    assert group.without_store == (1, 2)
    assert exchange(tmp_path, NAMESPACE) == {"a": group}
    (problem,) = groups(tmp_path).problems(topology())
    assert "continue with `raymq migrate a`" in problem
    again, specs = migrating(tmp_path)
    assert again.problems(topology()) == []
    assert (members(specs), again.bootstrap("a")) == (listed, group)
    again.save("a", replace(group, without_store=()))
    assert groups(tmp_path).problems(topology()) == []


def test_record_of_a_group_that_is_left_is_removed(tmp_path: Path, stored: dict[str, bytes]) -> None:
    save(tmp_path, NAMESPACE, "a", RECORD)
    found = RaftGroups(tmp_path, NAMESPACE, here, migrating="a")
    assert found.problems(topology(replicas=1, replication=None)) == []
    for _ in range(2):
        found.forget("a")
        assert exchange(tmp_path, NAMESPACE) == {}


def joining(root: Path, store_id: str, users: bytes = b"") -> NewStore:
    return NewStore(str(root), StoreIdentity("C", "a", 1), {"flush": "sync"}, store_id, users)


def test_store_of_a_replica_that_joins_replaces_what_is_there(tmp_path: Path) -> None:
    open_store(tmp_path, 1).close()
    root = tmp_path / "store" / "a-1"
    (root / "marker").write_text("of the slave")
    for _ in range(2):  # an interrupted migration repeats it
        assert create_joining_stores([joining(root, "new", b"users")]) == []
        name = read_name(root)
        assert name is not None
        assert (name.store_id, (root / TERM_FILE).exists()) == ("new", True)
        users = root / "config" / FILE_NAME
        assert (users.read_bytes(), users.stat().st_mode & 0o777) == (b"users", 0o600)
    assert sorted(each.name for each in root.parent.iterdir()) == ["a-1", "a-1.before-group-1"]
    assert (root.parent / "a-1.before-group-1" / "marker").read_text() == "of the slave"
    assert create_joining_stores([joining(root, "newer")]) == []
    assert (root.parent / "a-1.before-group-2" / TERM_FILE).exists()


def test_store_with_log_files_elsewhere_is_not_set_aside(tmp_path: Path) -> None:
    root = tmp_path / "store" / "a-1"
    settings = StoreSettings.model_validate({**SMALL["store"], "commit_log_paths": [str(tmp_path / "disk")]})
    MessageStore.open(root, settings, StoreIdentity("C", "a", 1), SystemClock()).close()
    (problem,) = create_joining_stores([joining(root, "new")])
    assert "has log files elsewhere" in problem
    assert (root / "raymq.json").exists()


def test_store_that_cannot_be_the_first_of_a_group_is_named(tmp_path: Path) -> None:
    open_store(tmp_path, 0).close()
    root = tmp_path / "store" / "a-0"
    first = NewStore(str(root), StoreIdentity("DefaultCluster", "a"), SMALL["store"], "")
    assert check_first_members([first]) == []
    for changed, reason in (
        (replace(first, identity=StoreIdentity("Other", "a")), "is the store of"),
        (replace(first, settings={"commit_log_file_bytes": 1 << 21}), "set it to 1048576"),
        (replace(first, root=str(tmp_path / "none")), "there is no store"),
    ):
        (problem,) = check_first_members([changed])
        assert reason in problem
