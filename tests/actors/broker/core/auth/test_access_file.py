"""The file of users and policies: its mode, edits while the broker runs, and damage."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import orjson
import pytest

from actors.access.access_file import AccessFile
from actors.access.users import AccessTable
from actors.wire.bodies.access import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from actors.wire.remoting_errors import Refused
from store.store_errors import StoreError
from tests.actors.broker.brokers import run
from tests.actors.broker.core.auth.access_peers import SECRETS, Connect, SigningPeer, with_access
from tests.eventually import eventually_async

SECRET = SECRETS["alice"]


def path_of(root: Path) -> Path:
    return root / "config" / "raymqAccess.json"


def add_alice(table: AccessTable) -> None:
    table.add_user(UserInfo("alice", SECRET))
    entry = PolicyEntryInfo("Topic:T", ["Pub"], ["10.0.0.0/8"], "Allow")
    table.set_policies(AclInfo("User:alice", [PolicyInfo(None, [entry])]))


def saved(root: Path) -> AccessFile:
    """Return the object of a file that contains alice."""
    file = AccessFile(path_of(root))
    file.load()
    run(lambda: file.change(add_alice))
    return file


def test_saved_file_is_private_and_holds_users_and_policies(tmp_path: Path) -> None:
    table = saved(tmp_path).table
    assert path_of(tmp_path).stat().st_mode & 0o777 == 0o600
    other = AccessFile(path_of(tmp_path))
    other.load()
    assert (other.table.users, other.table.policies) == (table.users, table.policies)
    assert not list(tmp_path.rglob("*.new"))


def test_repr_of_a_user_contains_no_secret(tmp_path: Path) -> None:
    user = saved(tmp_path).table.users["alice"]
    for text in (repr(user), repr(user.to_info(with_secret=True))):
        assert "alice" in text
        assert SECRET not in text


@pytest.mark.parametrize(
    ("info", "is_same"),
    [
        (UserInfo("alice", SECRET), True),
        (UserInfo("alice", SECRET, "normal", "enable"), True),
        (UserInfo("alice", f"{SECRET}!"), False),
        (UserInfo("alice", None), False),
        (UserInfo("alice", SECRET, "Super"), False),
        (UserInfo("alice", SECRET, "Normal", "disable"), False),
        (UserInfo("bob", SECRET), False),
    ],
    ids=["equal", "defaults", "key", "no key", "type", "status", "name"],
)
def test_user_exists_only_with_all_its_values(tmp_path: Path, info: UserInfo, is_same: bool) -> None:
    assert saved(tmp_path).table.has_user(info) == is_same


def test_refused_change_changes_nothing(tmp_path: Path) -> None:
    file = saved(tmp_path)
    before = path_of(tmp_path).read_bytes()
    with pytest.raises(Refused, match="is existed"):
        run(lambda: file.change(lambda table: table.add_user(UserInfo("alice", "other"))))
    assert path_of(tmp_path).read_bytes() == before
    assert file.table.users["alice"].secret_key == SECRET


def test_edit_of_the_file_is_not_lost_by_a_change(tmp_path: Path) -> None:
    file = saved(tmp_path)
    edited = AccessFile(path_of(tmp_path))
    edited.load()
    run(lambda: edited.change(lambda table: table.add_user(UserInfo("bob", "bob-secret"))))
    run(lambda: file.change(lambda table: table.delete_user("alice")))
    assert list(file.table.users) == ["bob"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "is invalid"),
        (b"[]", "not a JSON object"),
        (b'{"users": [{"username": "alice"}]}', "password can not be blank"),
        (b'{"users": [{"username": "alice", "password": ["alice-secret"]}]}', "must be a string"),
        (b'{"users": ["alice-secret"]}', "must be an object"),
        (b'{"acls": [{"subject": "User:bob"}]}', "User:bob is not exist"),
    ],
)
def test_invalid_file_is_refused_at_start_and_kept_out_by_reload(
    tmp_path: Path, content: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = saved(tmp_path)
    path_of(tmp_path).write_bytes(content)
    with pytest.raises(StoreError, match=reason):
        AccessFile(path_of(tmp_path)).load()
    with caplog.at_level(logging.INFO):
        run(file.reload)
        run(file.reload)
    assert list(file.table.users) == ["alice"]
    assert caplog.text.count("access_file_invalid") == 1
    if b"must be an object" not in reason.encode():
        assert SECRET not in caplog.text


def test_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = saved(tmp_path)
    path_of(tmp_path).chmod(0o644)
    with pytest.raises(StoreError, match="run chmod 600"):
        AccessFile(path_of(tmp_path)).load()
    run(file.reload)
    assert list(file.table.users) == ["alice"]


def test_running_broker_reloads_an_edited_file(tmp_path: Path) -> None:
    async def story(inner: SigningPeer, connect: Connect) -> None:
        await inner.create_user("alice")
        await inner.permit("alice", "Topic:T", "Pub")
        alice = connect("alice")
        assert (await alice.send("T")).code == 0
        path = path_of(tmp_path / "store")
        content = orjson.loads(path.read_bytes())
        content["users"][0]["userStatus"] = "disable"
        path.write_bytes(orjson.dumps(content))

        async def is_refused() -> bool:
            return (await alice.send("T")).code != 0

        await eventually_async(is_refused)

    with_access(story, tmp_path)


def test_table_of_another_replica_is_used_at_once_and_saved_later(tmp_path: Path) -> None:
    file = saved(tmp_path)
    before = path_of(tmp_path).read_bytes()
    file.use(AccessTable())
    assert path_of(tmp_path).read_bytes() == before
    run(file.save)
    again = AccessFile(path_of(tmp_path))
    again.load()
    assert again.table.users == file.table.users == {}
    version = path_of(tmp_path).stat().st_mtime_ns
    run(file.save)
    assert path_of(tmp_path).stat().st_mtime_ns == version


def test_change_does_not_overwrite_a_table_that_replaced_its_own(tmp_path: Path) -> None:
    """The leadership of a group is lost while the change is being saved: the confirmed users apply."""
    file = saved(tmp_path)

    async def story() -> None:
        changing = asyncio.ensure_future(file.change(lambda table: table.delete_user("alice")))
        await asyncio.sleep(0)  # the file is being written
        file.use(file.table.copy())
        with pytest.raises(StoreError, match="repeat the request"):
            await changing
        assert "alice" in file.table.users
        await file.save()

    run(story)
    again = AccessFile(path_of(tmp_path))
    again.load()
    assert "alice" in again.table.users
