"""Users of a nameserver: which of them may change routes and the kv config."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from actors.access.access_file import AccessFile
from actors.access.users import AccessTable
from actors.nameserver.access import PUBLIC
from actors.nameserver.nameserver_settings import NameserverSettings
from actors.nameserver.service import NameserverService, build_nameserver
from actors.transport.client import RemotingClient, SigningClient
from actors.transport.limits import RemotingLimits
from actors.wire.bodies.access import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from actors.wire.codes import RayMQRequestCode, RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.signing import Credentials, Signer
from store.common.clock import SystemClock
from store.store_errors import StoreError
from tests.actors.broker.brokers import TIMEOUT_MS, run
from tests.actors.broker.core.auth.access_peers import DENIED, INNER, SECRETS, inner_file
from tests.eventually import eventually_async

LIMITS = RemotingLimits(connect_timeout_ms=TIMEOUT_MS)
KV = {"namespace": "n", "key": "k", "value": "v"}
BROKER = {
    "brokerName": "evil",
    "brokerAddr": "10.0.0.1:1",
    "clusterName": "DefaultCluster",
    "brokerId": "0",
    "haServerAddr": "",
}
OF_BROKERS = frozenset(
    {
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.QUERY_DATA_VERSION,
        RequestCode.BROKER_HEARTBEAT,
    }
)
"""What only brokers send: its sender can direct clients to any address."""
CHANGES: dict[int, dict[str, str]] = {
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: {"brokerName": "broker-a"},
    RequestCode.ADD_WRITE_PERM_OF_BROKER: {"brokerName": "broker-a"},
    RequestCode.PUT_KV_CONFIG: KV,
    RequestCode.DELETE_KV_CONFIG: KV,
    RequestCode.UPDATE_NAMESRV_CONFIG: {},
    RequestCode.DELETE_TOPIC_IN_NAMESRV: {"topic": "T"},
}

Ask = Callable[..., Awaitable[int]]
"""Sends a request as a user (None: unsigned) and returns the response code."""


def permit(user: str, resource: str, *actions: str) -> Callable[[AccessTable], None]:
    """Return a change that creates a user with a policy."""

    def change(table: AccessTable) -> None:
        table.add_user(UserInfo(user, SECRETS[user]))
        entry = PolicyEntryInfo(resource, list(actions), [], "Allow")
        table.set_policies(AclInfo(f"User:{user}", [PolicyInfo(None, [entry])]))

    return change


def with_users(story: Callable[[AccessFile, Ask], Awaitable[None]], root: Path, **more: Any) -> None:
    """Run a scenario with a nameserver that has an access file, and the file itself."""
    file = AccessFile(root / "users.json")
    given = {
        "listen_port": 0,
        "authentication_enabled": True,
        "inner_credentials_file": inner_file(root),
        "access_file": file.path,
        **more,
    }

    async def scenario() -> None:
        nameserver = build_nameserver(NameserverSettings.model_validate(given), SystemClock())
        await nameserver.start()
        try:
            await story(file, asking(nameserver))
        finally:
            await nameserver.stop()

    run(scenario)


def asking(nameserver: NameserverService) -> Ask:
    async def ask(user: str | None, code: int, ext: dict[str, str], secret: str = "") -> int:
        keys = INNER if user == "inner" else Credentials(user, secret or SECRETS[user]) if user else None
        client = (
            RemotingClient(SystemClock(), None, LIMITS)
            if keys is None
            else SigningClient(SystemClock(), Signer(keys), None, LIMITS)
        )
        response = await client.invoke(nameserver.address, RemotingCommand(code, dict(ext)), TIMEOUT_MS)
        await client.close()
        return response.code

    return ask


def test_each_change_needs_a_permitted_user(tmp_path: Path) -> None:
    async def story(file: AccessFile, ask: Ask) -> None:
        await file.change(permit("alice", "Cluster:DefaultCluster", "Update"))
        await file.change(permit("bob", "Topic:*", "Pub", "Sub", "Get", "List"))

        async def is_loaded() -> bool:
            return await ask("alice", RequestCode.PUT_KV_CONFIG, KV) == 0

        await eventually_async(is_loaded)
        for code, ext in CHANGES.items():
            for user in (None, "bob"):
                assert await ask(user, code, ext) == DENIED, (user, code)
            assert await ask("alice", code, ext, secret="guess") == DENIED, code
            assert await ask("inner", code, ext) != DENIED, code
            if code != RequestCode.DELETE_TOPIC_IN_NAMESRV:
                assert await ask("alice", code, ext) != DENIED, code

    with_users(story, tmp_path)


def test_all_changes_of_the_request_table_are_tested() -> None:
    nameserver = build_nameserver(NameserverSettings(listen_port=0), SystemClock())
    reads = PUBLIC | {RequestCode.GET_NAMESRV_CONFIG, RayMQRequestCode.PROVE_PEER}
    assert set(nameserver.server.chain.table.rows) == reads | OF_BROKERS | set(CHANGES)


def test_settings_need_a_permitted_user(tmp_path: Path) -> None:
    """They name the files of credentials and users."""

    async def story(file: AccessFile, ask: Ask) -> None:
        await file.change(permit("alice", "Cluster:DefaultCluster", "Get"))
        await file.change(permit("bob", "Topic:*", "Pub", "Sub", "Get", "List"))

        async def is_loaded() -> bool:
            return await ask("alice", RequestCode.GET_NAMESRV_CONFIG, {}) == 0

        await eventually_async(is_loaded)
        for user in (None, "bob"):
            assert await ask(user, RequestCode.GET_NAMESRV_CONFIG, {}) == DENIED

    with_users(story, tmp_path)


def test_only_the_inner_user_registers_brokers(tmp_path: Path) -> None:
    async def story(file: AccessFile, ask: Ask) -> None:
        await file.change(permit("alice", "*", "All"))
        await file.change(lambda table: table.add_user(UserInfo("root", SECRETS["root"], "Super")))

        async def are_loaded() -> bool:
            return {await ask(user, RequestCode.PUT_KV_CONFIG, KV) for user in ("alice", "root")} == {0}

        await eventually_async(are_loaded)
        for code in OF_BROKERS:
            for user in (None, "alice", "root"):
                assert await ask(user, code, BROKER) == DENIED, (user, code)
            assert await ask("inner", code, BROKER) != DENIED, code
            assert await ask("inner", code, {**BROKER, "OnBehalfOf": "root"}) == DENIED, code

    with_users(story, tmp_path)


def test_users_register_brokers_if_the_setting_permits_it(tmp_path: Path) -> None:
    async def story(file: AccessFile, ask: Ask) -> None:
        await file.change(permit("alice", "Cluster:DefaultCluster", "Update"))
        await file.change(permit("bob", "*", "Pub", "Sub"))

        async def is_permitted() -> bool:
            return await ask("alice", RequestCode.REGISTER_BROKER, BROKER) == 0

        await eventually_async(is_permitted)
        for code in OF_BROKERS:
            assert await ask("bob", code, BROKER) == DENIED, code

    with_users(story, tmp_path, users_register_brokers=True)


def test_registration_by_users_needs_a_file_of_users(tmp_path: Path) -> None:
    given = {
        "authentication_enabled": True,
        "inner_credentials_file": inner_file(tmp_path),
        "users_register_brokers": True,
    }
    with pytest.raises(StoreError, match=r"users_register_brokers needs .* and access_file"):
        build_nameserver(NameserverSettings.model_validate(given), SystemClock())


def test_delete_of_a_topic_needs_permission_for_that_topic(tmp_path: Path) -> None:
    async def story(file: AccessFile, ask: Ask) -> None:
        await file.change(permit("bob", "Topic:orders", "Delete"))

        async def is_permitted() -> bool:
            return await ask("bob", RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders"}) == 0

        await eventually_async(is_permitted)
        assert await ask("bob", RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "other"}) == DENIED

    with_users(story, tmp_path)


def test_policies_name_the_cluster_of_the_nameserver(tmp_path: Path) -> None:
    async def story(file: AccessFile, ask: Ask) -> None:
        await file.change(permit("alice", "Cluster:East", "Update"))
        await file.change(permit("bob", "Cluster:West", "Update"))

        async def is_permitted() -> bool:
            return await ask("bob", RequestCode.PUT_KV_CONFIG, KV) == 0

        await eventually_async(is_permitted)
        assert await ask("alice", RequestCode.PUT_KV_CONFIG, KV) == DENIED

    with_users(story, tmp_path, cluster_name="West")


def test_reads_are_open_to_everyone(tmp_path: Path) -> None:
    async def story(file: AccessFile, ask: Ask) -> None:
        assert await ask(None, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}) == 0
        assert await ask("bob", RequestCode.GET_BROKER_CLUSTER_INFO, {}, secret="guess") == 0

    with_users(story, tmp_path)


def test_invalid_access_file_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    given = {
        "authentication_enabled": True,
        "inner_credentials_file": inner_file(tmp_path),
        "access_file": path,
    }
    path.write_text("{")
    path.chmod(0o644)
    for match in ("has mode 0644", "users and policies"):
        with pytest.raises(StoreError, match=match):
            build_nameserver(NameserverSettings.model_validate(given), SystemClock())
        path.chmod(0o600)
    given["access_file"] = Path("users.json")
    with pytest.raises(StoreError, match=r"access_file users\.json is a relative path"):
        build_nameserver(NameserverSettings.model_validate(given), SystemClock())
