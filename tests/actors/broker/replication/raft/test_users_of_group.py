"""Users and policies of a group survive the loss of its leader; the log does not show their secret keys."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from actors.access.access_file import FILE_NAME, AccessFile
from actors.access.sealed_secrets import SealedSecrets
from actors.access.users import AccessTable
from actors.broker.replication.tables.access_entries import PolicyEntries, UserEntries
from actors.broker.service import BrokerService
from actors.wire.admin_headers import UserHeader
from actors.wire.bodies.access import UserInfo
from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.signing import Credentials, write_credentials
from tests.actors.broker.brokers import Peer, run
from tests.actors.broker.core.auth.access_peers import INNER, SECRETS, SigningPeer, entry, inner_file
from tests.actors.broker.replication.raft.groups import Group
from tests.actors.broker.replication.raft.test_joining import confirmed
from tests.actors.broker.replication.raft.test_member_change import added, changed
from tests.eventually import eventually_async


class GroupWithUsers(Group):
    """A group with access control, whose clients are the inner user."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._inner = inner_file(root)
        self._credentials = INNER

    def settings_of_each(self) -> dict[str, Any]:
        return {
            "authentication_enabled": True,
            "authorization_enabled": True,
            "inner_credentials_file": self._inner,
        }

    def peer_of(self, broker: BrokerService) -> Peer:
        return SigningPeer(broker, self._credentials)

    async def restart_with(self, inner: Credentials) -> None:
        """Stop all replicas, replace the keys of the inner user, and start all."""
        for replica in range(3):
            await self.stop(replica)
        self._inner.unlink()
        write_credentials(self._inner, inner)
        self._credentials = inner
        await asyncio.gather(*map(self.start, range(3)))

    def users(self, replica: int) -> dict[str, Any]:
        """The users and policies of a replica, with secret keys."""
        control = self.peers[replica].broker.graph.access.control
        assert control is not None
        return control.file.table.to_json()

    async def until_equal(self, leader: int) -> dict[str, Any]:
        """Wait until all replicas that run have the leader's users; return these."""
        await eventually_async(lambda: all(self.users(each) == self.users(leader) for each in self.peers))
        return self.users(leader)

    async def change(self, method: str, *values: str, among: Iterable[int] = range(3)) -> int:
        """Let the leader change users or policies by a method of SigningPeer; return the leader."""

        async def ask(peer: Peer) -> RemotingCommand:
            response: RemotingCommand = await getattr(peer, method)(*values)
            return response

        leader, response = await self.of_leader(ask, among)
        assert response.code == ResponseCode.SUCCESS, response.remark
        return leader

    async def send_as(self, replica: int, user: str) -> int:
        """Send a message as a user, and return the code of the response."""
        peer = SigningPeer(self.peers[replica].broker, Credentials(user, SECRETS[user]))
        response = await peer.send("T", b"of a user")
        await peer.client.close()
        return response.code


def names(found: dict[str, Any]) -> list[str]:
    return [each["username"] for each in found["users"]]


async def create_user(peer: Peer, name: str, user_type: str) -> RemotingCommand:
    assert isinstance(peer, SigningPeer)
    return await peer.create_user(name, user_type)


async def delete_user(peer: Peer, name: str) -> RemotingCommand:
    return await peer.ask(RequestCode.AUTH_DELETE_USER, UserHeader(name).to_ext())


async def assert_not_readable(group: GroupWithUsers, replica: int) -> None:
    """No secret key is in the log or in the saved entries; the file of users is for its owner only."""
    tables = group.root(replica) / "config" / "raymqGroupTables.json"
    users = group.root(replica) / "config" / FILE_NAME
    await eventually_async(lambda: b'"root"' in content(tables) and b'"root"' in content(users))
    for data in (confirmed(group, replica), content(tables)):
        assert not any(secret.encode() in data for secret in SECRETS.values())
    assert stat.S_IMODE(users.stat().st_mode) == 0o600


def content(path: Path) -> bytes:
    """The content of a file; empty before it is saved for the first time, and while it is being replaced."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def test_users_and_policies_survive_the_loss_of_the_leader(tmp_path: Path) -> None:
    async def story() -> None:
        async with GroupWithUsers(tmp_path) as group:
            await group.send(b"creates topic T")
            for name in ("alice", "bob", "bob"):  # as mqadmin sends it to several replicas
                await group.change("create_user", name)
            _, differs = await group.of_leader(lambda peer: create_user(peer, "bob", "Super"))
            assert "The user is existed" in (differs.remark or "")
            await group.change("permit", "alice", "Topic:T", "Pub")
            first, gone = await group.of_leader(partial(delete_user, name="bob"))
            assert gone.code == ResponseCode.SUCCESS, gone.remark
            found = await group.until_equal(first)
            assert names(found) == ["alice"]
            assert [each["subject"] for each in found["acls"]] == ["User:alice"]

            group.isolate(first)
            peer = group.peers[first]
            assert isinstance(peer, SigningPeer)
            lost = await peer.create_user("bob")
            assert lost.code == ResponseCode.SERVICE_NOT_AVAILABLE
            others = [each for each in range(3) if each != first]
            second = await group.change("create_user", "root", "Super", among=others)
            assert await group.send_as(second, "alice") == ResponseCode.SUCCESS
            group.heal()
            assert names(await group.until_equal(second)) == ["alice", "root"]

            await group.stop(second)
            await group.start(second)
            leader = await group.send(b"later")
            await group.until_equal(leader)
            for each in range(3):
                await assert_not_readable(group, each)

    run(story)


@pytest.mark.extended
def test_replica_that_joins_gets_the_users(tmp_path: Path) -> None:
    async def story() -> None:
        async with GroupWithUsers(tmp_path) as group:
            await group.change("create_user", "alice")
            leader = await group.change("permit", "alice", "Topic:T", "Pub")
            new = await group.start_new(3)
            await changed(group, **added(group, new))
            assert names(await group.until_equal(leader)) == ["alice"]
            await eventually_async(lambda: (group.root(3) / "config" / FILE_NAME).exists())

    run(story)


@pytest.mark.extended
def test_users_are_encrypted_again_after_a_change_of_the_inner_users_key(tmp_path: Path) -> None:
    """A replica that joins afterwards can decrypt them, and has no file of users."""

    async def story() -> None:
        async with GroupWithUsers(tmp_path) as group:
            await group.send(b"creates topic T")
            for name in ("alice", "bob"):
                await group.change("create_user", name)
            before = await group.until_equal(await group.change("permit", "alice", "Topic:T", "Pub"))
            await group.restart_with(Credentials("inner", "another inner secret"))
            leader = await group.send(b"later")
            assert await group.until_equal(leader) == before
            assert await group.send_as(leader, "alice") == ResponseCode.SUCCESS
            await group.change("update_user", "bob")
            new = await group.start_new(3)
            await changed(group, **added(group, new))
            await eventually_async(lambda: group.users(3) == group.users(leader))
            assert names(group.users(3)) == ["alice", "bob"]

    run(story)


@pytest.mark.extended
def test_forwarded_requests_keep_their_user(tmp_path: Path) -> None:
    """A former leader signs them as the inner user, which could do more than the user may."""

    async def story() -> None:
        async with GroupWithUsers(tmp_path) as group:
            await group.send(b"creates topic T")
            await group.change("create_user", "alice")
            await group.change("create_user", "bob")
            leader = await group.change("permit", "alice", "Topic:T", "Pub")
            await group.change("permit", "alice", "Cluster:*", "Update")
            await group.until_equal(leader)
            to = (leader + 1) % 3
            await eventually_async(group.is_leader_registered)
            moved = await group.peers[leader].ask(
                RayMQRequestCode.TRANSFER_LEADERSHIP, {"toReplica": str(to)}
            )
            assert moved.code == ResponseCode.SUCCESS, moved.remark
            assert await group.send_as(leader, "alice") == ResponseCode.SUCCESS
            assert await group.send_as(leader, "bob") == ResponseCode.NO_PERMISSION

            alice = SigningPeer(group.peers[leader].broker, Credentials("alice", SECRETS["alice"]))
            forbidden = await alice.create_user("root", "Super")
            assert forbidden.code == ResponseCode.NO_PERMISSION
            assert "can only be created or changed by a super user" in str(forbidden.remark)
            assert (await alice.permit("alice", "*", "All")).code == ResponseCode.NO_PERMISSION
            await alice.client.close()
            inner = group.peers[leader]
            assert isinstance(inner, SigningPeer)
            assert (await inner.create_user("root", "Super")).code == ResponseCode.SUCCESS
            assert names(await group.until_equal(to)) == ["alice", "bob", "root"]

    run(story)


@pytest.mark.extended
def test_group_without_access_control_refuses_users(tmp_path: Path) -> None:
    async def story() -> None:
        async with Group(tmp_path) as group:
            body = orjson.dumps({"username": "alice", "password": "alice-secret"})
            ask = partial(
                Peer.ask, code=RequestCode.AUTH_CREATE_USER, ext=UserHeader("alice").to_ext(), body=body
            )
            _, refused = await group.of_leader(ask)
            assert refused.code == ResponseCode.NO_PERMISSION
            assert "set authentication_enabled and inner_credentials_file" in str(refused.remark)

    run(story)


def test_sealed_secret_opens_with_the_same_key_and_user_only() -> None:
    sealed = SealedSecrets(INNER, "c/broker-a")
    text = sealed.seal("alice", "alice-secret")
    assert text == SealedSecrets(INNER, "c/broker-a").seal("alice", "alice-secret")
    assert "alice-secret" not in text
    assert sealed.open("alice", text) == "alice-secret"
    for other, user, given in (
        (SealedSecrets(Credentials("inner", "another key"), "c/broker-a"), "alice", text),
        (SealedSecrets(INNER, "c/broker-b"), "alice", text),
        (sealed, "bob", text),
        (sealed, "alice", text[:-4]),
        (sealed, "alice", "%"),
    ):
        with pytest.raises(ValueError, match="use the same on all"):
            other.open(user, given)


def test_user_whose_key_cannot_be_decrypted_stays_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After a change of the inner user's key, old entries of the log have the old one."""
    table = AccessTable()
    table.add_user(UserInfo("alice", "alice-secret", "Normal", "enable"))
    file = AccessFile(tmp_path / FILE_NAME)
    file.use(table)
    kind = UserEntries(file, SealedSecrets(INNER, "c/b"))
    of_others = UserEntries(file, SealedSecrets(Credentials("inner", "another key"), "c/b"))
    for value in (of_others.get("alice"), {}, {"sealedKey": 5}, []):
        kind.put("alice", value)
        assert "raft_user_not_applied" in caplog.text
        caplog.clear()
    assert file.table.users["alice"].secret_key == "alice-secret"
    kind.put("alice", {**kind.get("alice"), "userStatus": "disable"})
    assert not file.table.users["alice"].is_enabled
    kind.put("alice", None)
    assert kind.all() == {}


def test_policies_of_a_user_that_is_missing_do_not_damage_the_file(tmp_path: Path) -> None:
    """A replica that joined after a change of the inner user's key cannot decrypt the users before it."""
    path = tmp_path / "config" / FILE_NAME
    file, sealed = AccessFile(path), SealedSecrets(INNER, "c/b")
    users, policies = UserEntries(file, sealed), PolicyEntries(file)
    acl = {
        "subject": "User:alice",
        "policies": [{"policyType": "Custom", "entries": [entry("Topic:T", ["Pub"])]}],
    }
    policies.put("alice", acl)
    run(file.save)
    AccessFile(path).load()
    value = {"userType": "Normal", "userStatus": "enable", "sealedKey": sealed.seal("alice", "alice-secret")}
    users.put("alice", value)
    run(file.save)
    again = AccessFile(path)
    again.load()
    assert (again.table.users.keys(), again.table.policies) == ({"alice"}, file.table.policies)
    assert policies.get("alice") is not None
