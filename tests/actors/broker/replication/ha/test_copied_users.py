"""A slave has the users and policies of its master, which gives secret keys to no other peer."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from actors.broker.core.role import Role
from actors.transport.client import RemotingClient, SigningClient
from actors.wire.admin_headers import UserHeader
from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.signing import ACCESS_KEY, ON_BEHALF_OF, ON_BEHALF_OF_SOURCE, Credentials, Signer
from store.common.clock import SystemClock
from tests.actors.broker.brokers import Peer, registered_broker, run, slave_of
from tests.actors.broker.core.auth.access_peers import DENIED, INNER, SECRETS, SigningPeer, inner_file
from tests.actors.broker.replication.ha.test_ha_client import broker
from tests.actors.broker.replication.ha.test_metadata_sync import sync_of

USERS = RayMQRequestCode.GET_ALL_USERS


@asynccontextmanager
async def signing(peer: Peer, name: str = "", secret: str = "") -> AsyncIterator[SigningPeer]:
    """Yield a client that signs as the inner user, or as the user `name` with its or the given key."""
    found = SigningPeer(peer.broker, Credentials(name, secret or SECRETS[name]) if name else INNER)
    try:
        yield found
    finally:
        await found.client.close()


@asynccontextmanager
async def pair(root: Path, **slave: Any) -> AsyncIterator[tuple[SigningPeer, SigningPeer]]:
    """Yield clients of a master and of a slave that have access control, signing as the inner user."""
    access = {
        "authentication_enabled": True,
        "authorization_enabled": True,
        "inner_credentials_file": inner_file(root),
    }
    async with (
        broker(root / "m", **access) as master,
        broker(root / "s", **{"role": "slave", **access, **slave}) as copy,
        signing(master) as to_master,
        signing(copy) as to_slave,
    ):
        yield to_master, to_slave


def users_file(root: Path, name: str = "s") -> dict[str, Any]:
    content: dict[str, Any] = orjson.loads((root / name / "store/config/raymqAccess.json").read_bytes())
    return content


def test_promoted_slave_knows_the_users_and_policies_of_its_master(tmp_path: Path) -> None:
    async def story() -> None:
        async with pair(tmp_path) as (master, slave):
            for name in ("alice", "bob"):
                assert (await master.create_user(name)).code == 0
            assert (await master.permit("alice", "Topic:T", "Pub")).code == 0
            sync = sync_of(slave, slave.client)
            await sync.copy_from(master.broker.address)
            assert users_file(tmp_path) == users_file(tmp_path, "m")
            assert (tmp_path / "s/store/config/raymqAccess.json").stat().st_mode & 0o777 == 0o600
            await slave.role.become(Role.MASTER, 1)
            async with signing(slave, "alice") as alice, signing(slave, "bob") as bob:
                assert (await alice.send("T")).code == 0
                assert (await bob.send("T")).code == DENIED
            async with signing(slave, "root") as unknown, signing(slave, "alice", "wrong") as wrong:
                assert (await unknown.send("T")).code == DENIED
                assert (await wrong.send("T")).code == DENIED

    run(story)


def test_deleted_user_and_changed_key_reach_the_slave(tmp_path: Path) -> None:
    async def story() -> None:
        async with pair(tmp_path) as (master, slave):
            sync = sync_of(slave, slave.client)
            for name in ("alice", "bob"):
                await master.create_user(name)
            await sync.copy_from(master.broker.address)
            await master.update_user("alice", password="changed")
            await master.ask(RequestCode.AUTH_DELETE_USER, UserHeader("bob").to_ext())
            await sync.copy_from(master.broker.address)
            (alice,) = users_file(tmp_path)["users"]
            assert (alice["username"], alice["password"]) == ("alice", "changed")

    run(story)


def test_users_change_only_on_the_master(tmp_path: Path) -> None:
    async def story() -> None:
        async with pair(tmp_path) as (_, slave):
            refused = await slave.create_user("alice")
            assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "send it to the master" in (refused.remark or "")

    run(story)


def test_secret_keys_are_sent_only_to_the_inner_user(tmp_path: Path) -> None:
    async def story() -> None:
        async with pair(tmp_path) as (master, _):
            await master.create_user("root", "Super")
            await master.create_user("alice")
            await master.permit("alice", "*", "All")
            async with signing(master, "root") as root, signing(master, "alice") as alice:
                unsigned = RemotingClient(SystemClock())
                replies = [
                    await unsigned.invoke(master.broker.address, RemotingCommand(USERS), 5_000),
                    await root.ask(USERS),
                    await alice.ask(USERS),
                    await alice.ask(USERS, {"OnBehalfOf": "inner", "OnBehalfOfSource": "10.0.0.1"}),
                    await master.ask(USERS, {"OnBehalfOf": "root", "OnBehalfOfSource": "10.0.0.1"}),
                ]
                await unsigned.close()
            for reply in replies:
                assert reply.code == DENIED
                assert b"secret" not in bytes(reply.body)
            assert b"alice-secret" in bytes((await master.ask(USERS)).body)

    run(story)


@pytest.mark.parametrize(
    "claimed",
    [
        {},
        {ACCESS_KEY: "root"},
        {ACCESS_KEY: "inner"},
        {ON_BEHALF_OF: "root", ON_BEHALF_OF_SOURCE: "127.0.0.1"},
    ],
    ids=["nothing", "a user", "the inner user", "a gateway"],
)
def test_slave_without_access_control_lends_strangers_no_rights(
    tmp_path: Path, claimed: dict[str, str]
) -> None:
    """It has the inner keys, and its master access control, which is enabled on one after the other."""
    keys = {"inner_credentials_file": inner_file(tmp_path)}
    access = {"authentication_enabled": True, "authorization_enabled": True}
    mallory = orjson.dumps({"username": "mallory", "password": "secret", "userType": "Super"})

    async def story() -> None:
        async with (
            registered_broker(tmp_path, replication="async", **keys, **access) as (_, master),
            slave_of(master, tmp_path, **keys) as slave,
            signing(master) as inner,
        ):
            assert (await inner.create_user("root", "Super")).code == 0
            await inner.send("T")
            assert (await slave.ask(RayMQRequestCode.PROVE_PEER)).code == 0
            for code, ext in (
                (RequestCode.AUTH_CREATE_USER, UserHeader("mallory").to_ext()),
                (RequestCode.AUTH_DELETE_USER, UserHeader("root").to_ext()),
                (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}),
            ):
                refused = await slave.ask(code, {**ext, **claimed}, mallory)
                assert refused.code == DENIED, (code, refused.remark)
            users = orjson.loads(bytes((await inner.ask(RequestCode.AUTH_LIST_USER)).body))
            assert [each["username"] for each in users] == ["root"]
            assert master.tables.topics.find("T") is not None

    run(story)


def test_broker_without_authentication_has_no_users_to_copy(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path / "m") as master:
            reply = await master.ask(USERS)
            assert reply.code == DENIED
            assert "authentication_enabled" in (reply.remark or "")

    run(story)


class Answers(SigningClient):
    """A client to which the master answers requests for its users with a given response."""

    def __init__(self, response: RemotingCommand) -> None:
        super().__init__(SystemClock(), Signer(INNER))
        self.response = response

    async def invoke(self, address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        """Return the given response to GET_ALL_USERS."""
        if command.code == USERS:
            return self.response
        return await super().invoke(address, command, timeout_ms)


NOT_SUPPORTED = RemotingCommand.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="request type 7208")


@pytest.mark.parametrize(
    ("response", "event"),
    [
        (RemotingCommand.response(body=b""), "metadata_copy_failed"),
        (RemotingCommand.response(body=b"[]"), "metadata_copy_failed"),
        (RemotingCommand.response(body=b"{}"), "metadata_copy_failed"),
        (
            RemotingCommand.response(body=b'{"users": [{"password": "hidden"}], "acls": []}'),
            "metadata_copy_failed",
        ),
        (NOT_SUPPORTED, "metadata_not_offered"),
    ],
    ids=["empty", "list", "no-tables", "invalid-user", "older-or-java-master"],
)
def test_users_stay_if_the_master_sends_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, response: RemotingCommand, event: str
) -> None:
    async def story() -> None:
        async with pair(tmp_path) as (master, slave):
            await master.create_user("alice")
            await sync_of(slave, slave.client).copy_from(master.broker.address)
            client = Answers(response)
            sync = sync_of(slave, client)
            with caplog.at_level(logging.INFO):
                await sync.copy_from(master.broker.address)
                await sync.copy_from(master.broker.address)
            await client.close()
            assert [each["username"] for each in users_file(tmp_path)["users"]] == ["alice"]

    run(story)
    assert caplog.text.count(event) == 1
    assert "hidden" not in caplog.text
