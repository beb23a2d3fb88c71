"""A peer that is not of the cluster gains nothing if it forges responses or passes requests on."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from actors.host.cluster_access import AccessSettings, cluster_client
from actors.transport.client import RemotingClient
from actors.transport.clients.proofs import NEEDS_PROOF, RequestSigner
from actors.transport.request import RequestContext
from actors.transport.server import RemotingServer
from actors.transport.table import RequestTable
from actors.wire.bodies.routes import RegisterBrokerBody
from actors.wire.codes import RayMQRequestCode, RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import RegisterBrokerHeader
from actors.wire.remoting_errors import NotProven, RemotingError
from actors.wire.signing import SIGNATURE, Credentials, Signer
from store.common.clock import SystemClock
from store.message.data_version import DataVersion
from tests.actors.broker.brokers import TIMEOUT_MS, run, serving, settings_of
from tests.actors.broker.core.auth.access_peers import DENIED, INNER, SECRETS, SigningPeer, inner_file
from tests.actors.header_names import least_fields
from tests.actors.host.foreign_peers import PROVE, forging, relaying
from tests.actors.host.test_cluster_access import Cluster, protected_cluster
from tests.eventually import eventually_async
from tests.ports import free_port

CODES = [*RequestCode, *RayMQRequestCode]
USERS = RayMQRequestCode.GET_ALL_USERS
STOPPING = {RayMQRequestCode.RESTART_BROKER, RayMQRequestCode.DRAIN_BROKER}


@asynccontextmanager
async def a_process(
    root: Path, table: RequestTable | None = None, nameservers: tuple[str, ...] = (), **settings: Any
) -> AsyncIterator[RemotingClient]:
    """Yield the client of a process with access control, as it is to others of its cluster."""
    given = {"authentication_enabled": True, "inner_credentials_file": inner_file(root), **settings}
    found = AccessSettings.model_validate(given)
    client = cluster_client(found, Signer(INNER), SystemClock(), nameservers, table)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def unsigned() -> AsyncIterator[RemotingClient]:
    client = RemotingClient(SystemClock())
    try:
        yield client
    finally:
        await client.close()


def requests_of(cluster: Cluster) -> Iterator[tuple[str, RemotingServer, RemotingCommand]]:
    """Yield each request of the tables of nameserver, rebalancer and broker, with its receiver."""
    nameserver, rebalancer, broker = cluster
    for address, server in (
        (nameserver.address, nameserver.server),
        (rebalancer.address, rebalancer.server),
        (broker.address, broker.graph.loop.server),
    ):
        for code, row in server.chain.table.rows.items():
            if code not in STOPPING:
                ext = {} if row.header_type is None else least_fields(row.header_type)
                yield address, server, RemotingCommand(code, ext, b"{}")


def test_forger_gets_no_request_of_a_process_and_decides_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with forging() as forger, a_process(tmp_path) as process:
            for code in CODES:
                with pytest.raises(NotProven, match="is not signed with the key of the request"):
                    await process.invoke(forger.address, RemotingCommand(code), TIMEOUT_MS)
                process.oneway(forger.address, RemotingCommand(code))
            assert set(forger.codes) == {PROVE}

    run(story)


def test_relay_gets_no_request_of_a_process(tmp_path: Path) -> None:
    async def story() -> None:
        async with protected_cluster(tmp_path) as cluster, a_process(tmp_path) as process:
            for receiver in {address for address, _, _ in requests_of(cluster)}:
                async with relaying(receiver) as (address, relay):
                    command = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
                    with pytest.raises(NotProven):
                        await process.invoke(address, command, TIMEOUT_MS)
                    assert relay.connections

    run(story)


def test_every_request_that_is_passed_on_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with protected_cluster(tmp_path) as cluster, unsigned() as relay:
            signer, public = RequestSigner(Signer(INNER), SystemClock()), set()
            for address, _, command in requests_of(cluster):
                signer.sign(command, "broker.example:10911", "192.0.2.7:10911")
                response = await relay.invoke(address, command, TIMEOUT_MS)
                assert SIGNATURE not in response.ext, command
                if response.code != DENIED:
                    public.add((address, command.code))
            # What a nameserver returns to everybody.
            assert {address for address, _ in public} == {cluster[0].address}
            changed = {RequestCode.REGISTER_BROKER, RequestCode.PUT_KV_CONFIG}
            assert not changed & {code for _, code in public}

    run(story)


def test_every_response_to_a_process_is_signed(tmp_path: Path) -> None:
    async def story() -> None:
        async with protected_cluster(tmp_path) as cluster, unsigned() as client:
            clock, signer = SystemClock(), Signer(INNER)
            for address, _, command in requests_of(cluster):
                RequestSigner(signer, clock).sign(command, address, address)
                response = await client.invoke(address, command, TIMEOUT_MS)
                assert signer.has_answered(command.ext[SIGNATURE], response), (command, response.remark)

    run(story)


def test_response_that_is_changed_on_its_way_is_not_used(tmp_path: Path) -> None:
    """A relay at the address of the process itself, as only the network between them has one."""

    async def story() -> None:
        port, forged = free_port(), {"brokerName": "forgedName"}

        def change(data: bytes) -> bytes:
            for old, new in forged.items():
                data = data.replace(old.encode(), new.encode())
            return data

        address = f"127.0.0.1:{port}"
        async with (
            protected_cluster(tmp_path, receiver_addresses=[address]) as (_, _, broker),
            relaying(broker.address, change, port),
            a_process(tmp_path) as process,
        ):
            with pytest.raises(NotProven):
                await process.ask(address, RemotingCommand(RequestCode.GET_BROKER_CONFIG), TIMEOUT_MS)
            forged.clear()
            found = await process.ask(address, RemotingCommand(RequestCode.GET_BROKER_CONFIG), TIMEOUT_MS)
            assert b"brokerName" in bytes(found.body)

    run(story)


def test_signature_of_a_response_covers_request_and_content() -> None:
    signer, other = Signer(INNER), Signer(Credentials("inner", "other"))
    request = RemotingCommand(RequestCode.GET_BROKER_CONFIG, {"a": "b"})
    signer.sign(request, 1_000)
    signature = request.ext[SIGNATURE]
    given = RemotingCommand.response(0, "remark", {"name": "value"}, b"body", (b"part",))
    signed = signer.signed_response(signature, given)
    assert SIGNATURE not in given.ext
    assert signer.has_answered(signature, signed)
    assert not other.has_answered(signature, signed)
    signer.sign(request, 1_001)
    assert not signer.has_answered(request.ext[SIGNATURE], signed)
    for field, value in {
        "code": 1,
        "remark": "other",
        "ext": {**signed.ext, "name": "other"},
        "body": b"bodx",
        "parts": (b"parx",),
    }.items():
        changed = signer.signed_response(signature, given)
        setattr(changed, field, value)
        assert not signer.has_answered(signature, changed), field
    assert not signer.has_answered(signature, given)


def test_unproven_peer_pushes_no_requests(tmp_path: Path) -> None:
    async def story() -> None:
        pushed: list[int] = []

        def handle(context: RequestContext) -> RemotingCommand:
            pushed.append(context.command.code)
            return RemotingCommand.response()

        table, answered = RequestTable(), []
        for code in CODES:
            table.add(code, handle)
        async with forging() as forger, a_process(tmp_path, table) as process:

            def push(connection: Any) -> None:
                for code in CODES:
                    connection.call(RemotingCommand(code), TIMEOUT_MS, answered.append)

            forger.on_request = push
            with pytest.raises(NotProven):
                await process.invoke(forger.address, RemotingCommand(1), TIMEOUT_MS)
            await eventually_async(lambda: len(answered) == len(CODES))
            refusals = {each.code for each in answered if isinstance(each, RemotingCommand)}
            assert refusals <= {DENIED}
            assert pushed == []

    run(story)


def test_older_peers_are_used_if_the_setting_permits_it_but_not_for_keys(tmp_path: Path) -> None:
    async def story() -> None:
        async with forging() as forger, a_process(tmp_path, accept_unsigned_responses=True) as process:
            for code in CODES:
                command = RemotingCommand(code)
                if code in NEEDS_PROOF:
                    with pytest.raises(NotProven):
                        await process.invoke(forger.address, command, TIMEOUT_MS)
                else:
                    assert (await process.invoke(forger.address, command, TIMEOUT_MS)).code == 0
            assert not NEEDS_PROOF & forger.learned

    run(story)


def test_peer_that_has_proved_itself_must_sign_whatever_the_setting_is(tmp_path: Path) -> None:
    async def story() -> None:
        signer = Signer(INNER)

        def prove_only(context: RequestContext) -> RemotingCommand:
            response = RemotingCommand.response()
            signature = context.command.ext[SIGNATURE]
            return signer.signed_response(signature, response) if context.command.code == PROVE else response

        async with (
            forging(prove_only) as peer,
            a_process(tmp_path, accept_unsigned_responses=True) as process,
        ):
            with pytest.raises(NotProven):
                await process.invoke(peer.address, RemotingCommand(RequestCode.GET_BROKER_CONFIG), TIMEOUT_MS)

    run(story)


def test_nameserver_without_access_control_is_used(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            forging() as nameserver,
            a_process(tmp_path, nameservers=(nameserver.address,)) as process,
        ):
            command = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC)
            assert (await process.invoke(nameserver.address, command, TIMEOUT_MS)).code == 0

    run(story)


def test_processes_prove_themselves_before_authentication_is_enabled(tmp_path: Path) -> None:
    """The keys are set for all processes first, authentication later, process by process."""

    async def story() -> None:
        async with (
            protected_cluster(tmp_path, authentication_enabled=False) as cluster,
            a_process(tmp_path) as process,
        ):
            for address in (cluster[0].address, cluster[1].address, cluster[2].address):
                await process.ask(address, RemotingCommand(PROVE), TIMEOUT_MS)

    run(story)


def test_older_process_is_served_but_gets_no_secret_keys(tmp_path: Path) -> None:
    """A process of a version before receivers were named signs its requests without one."""

    async def story() -> None:
        async with protected_cluster(tmp_path) as cluster, unsigned() as older:
            clock, refused = SystemClock(), {}
            for address, _, command in requests_of(cluster):
                Signer(INNER).sign(command, clock.wall_ms())
                response = await older.invoke(address, command, TIMEOUT_MS)
                assert SIGNATURE not in response.ext
                if response.code == DENIED:
                    refused[command.code] = response.remark or ""
            assert "names no receiver" in refused.pop(USERS)
            assert all("User" in remark for remark in refused.values()), refused

    run(story)


def test_address_that_is_translated_is_accepted_if_it_is_set(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            protected_cluster(tmp_path, receiver_addresses=["cluster.example:10911"]) as cluster,
            unsigned() as client,
        ):
            signer = Signer(INNER)
            for each in cluster:
                for dialled, is_accepted in (("cluster.example:10911", True), ("other:10911", False)):
                    command = RemotingCommand(PROVE)
                    RequestSigner(signer, SystemClock()).sign(command, dialled, "192.0.2.7:10911")
                    response = await client.invoke(each.address, command, TIMEOUT_MS)
                    assert signer.has_answered(command.ext[SIGNATURE], response) is is_accepted

    run(story)


def test_secret_keys_go_to_no_peer_that_has_not_proved_itself(tmp_path: Path) -> None:
    async def story() -> None:
        async with forging() as forger, protected_cluster(tmp_path) as (_, _, broker):
            peer = SigningPeer(broker, INNER)
            assert (await peer.create_user("root", "Super")).code == 0
            root = SigningPeer(broker, Credentials("root", "root-secret"))
            assert (await root.create_user("alice")).code == 0  # to the broker, which knows the key of root
            for code in NEEDS_PROOF:
                for client in (peer.client, root.client):
                    with pytest.raises(RemotingError):
                        await client.invoke(forger.address, RemotingCommand(code, {}, b"secret"), TIMEOUT_MS)
            assert set(forger.codes) == {PROVE}
            for each in (peer, root):
                await each.client.close()

    run(story)


def test_slave_of_a_foreign_master_copies_nothing_and_reveals_nothing(tmp_path: Path) -> None:
    """The foreign broker has registered the name and the id of the master; it forges, or passes on."""

    async def story() -> None:
        passed = bytearray()

        def record(data: bytes) -> bytes:
            passed.extend(data)
            return data

        access = {"authentication_enabled": True, "inner_credentials_file": inner_file(tmp_path)}
        async with (
            protected_cluster(tmp_path) as (nameserver, _, master),
            relaying(master.address, record) as (relay_address, relay),
            forging() as forger,
        ):
            peer = SigningPeer(master, INNER)
            assert (await peer.create_user("alice")).code == 0
            for version, address in enumerate((relay_address, forger.address), 1):
                ext = RegisterBrokerHeader("broker-a", address, "DefaultCluster", 0, address).to_ext()
                body = RegisterBrokerBody(data_version=DataVersion(state_version=version)).encode()
                registered = RemotingCommand(RequestCode.REGISTER_BROKER, ext, body)
                settings = settings_of(
                    tmp_path / f"slave-{version}",
                    role="slave",
                    nameservers=[nameserver.address],
                    **access,
                )
                async with a_process(tmp_path) as inner, serving(settings) as slave:
                    await inner.ask(nameserver.address, registered, TIMEOUT_MS)
                    state = "is not signed|did not prove itself"
                    await eventually_async(
                        lambda slave=slave, state=state: re.search(
                            state, slave.broker.describe()["replication_state"]
                        )
                    )
                    assert not (settings.store_root / "config/raymqAccess.json").exists()
            assert relay.connections
            assert SECRETS["alice"].encode() not in passed
            assert not forger.learned
            await peer.client.close()

    run(story)


def test_slave_reads_the_log_only_from_the_port_that_its_master_names(tmp_path: Path) -> None:
    """The master is registered with the HA address of a foreign process."""

    async def story() -> None:
        access = {"authentication_enabled": True, "inner_credentials_file": inner_file(tmp_path)}
        async with (
            protected_cluster(tmp_path) as (nameserver, _, other),
            relaying(other.address) as (foreign, relay),
            a_process(tmp_path) as inner,
        ):
            pair = {"broker_name": "pair", "nameservers": [nameserver.address], **access}
            port = {"ha_listen_port": free_port(), "ha_allow_unauthenticated": True, "replication": "async"}
            async with serving(settings_of(tmp_path / "m", **pair, **port)) as master:
                header = RegisterBrokerHeader("pair", master.broker.address, "DefaultCluster", 0, foreign)
                registered = RemotingCommand(RequestCode.REGISTER_BROKER, header.to_ext())
                await inner.ask(nameserver.address, registered, TIMEOUT_MS)
                async with serving(settings_of(tmp_path / "s", role="slave", **pair)) as slave:
                    assert slave.broker.graph.registration.master.ha_server_addr == foreign
                    await eventually_async(
                        lambda: slave.broker.describe()["replication_state"] == "following"
                    )
            assert not relay.connections

    run(story)
