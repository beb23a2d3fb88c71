"""Python clients against brokers that require signatures and permissions; secrets stay out of all texts."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Callable
from pathlib import Path

import orjson
import pyarrow as pa
import pytest

from actors.transport.client import SigningClient
from actors.wire.admin_headers import AclHeader, UserHeader
from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.signing import SIGNATURE, Credentials, Signer, write_credentials
from cluster.client import (
    Admin,
    ClientConfig,
    ConsumerConfig,
    LocalTransactionState,
    Message,
    Producer,
    ProducerConfig,
    PullConsumer,
    PushConfig,
    PushConsumer,
    TransactionProducer,
    aio,
)
from cluster.client.errors import BrokerUnreachable, ConfigInvalid, PermissionDenied, SendFailed
from store.common.clock import SystemClock
from store.message.message import MessageExt
from tests.actors.host.foreign_peers import listed_forger
from tests.eventually import LIMIT_S, eventually

from .conftest import Cluster

INNER = Credentials("inner", "inner-secret")
SECRET = "alice-secret"
KEYS = {"access_key": "alice", "secret_key": SECRET}
TIMEOUT_MS = int(LIMIT_S * 1000)


@pytest.fixture
def protected(clusters: Callable[..., Cluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Start a cluster with access control. The environment names the credentials of the inner user."""
    path = tmp_path / "inner.key"
    write_credentials(path, INNER)
    monkeypatch.setenv("RAYMQ_CREDENTIALS", str(path))
    return clusters(
        brokers=1,
        authentication_enabled=True,
        authorization_enabled=True,
        inner_credentials_file=path,
    )


@pytest.fixture
def marked(protected: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Mark the credentials in the environment as the inner user's, as `raymq user credentials` does."""
    path = tmp_path / "marked.key"
    write_credentials(path, Credentials(INNER.access_key, INNER.secret_key, is_inner=True))
    monkeypatch.setenv("RAYMQ_CREDENTIALS", str(path))
    return protected


def permit(cluster: Cluster, *resources: str) -> None:
    """Create the user alice with Pub and Sub on resources."""
    entries = [{"resource": each, "actions": ["Pub", "Sub"], "decision": "Allow"} for each in resources]
    user = orjson.dumps({"password": SECRET})
    acl = orjson.dumps({"subject": "User:alice", "policies": [{"entries": entries}]})
    address = cluster.brokers["a"].address

    async def create() -> None:
        client = SigningClient(SystemClock(), Signer(INNER))
        for code, header, body in (
            (RequestCode.AUTH_CREATE_USER, UserHeader("alice"), user),
            (RequestCode.AUTH_CREATE_ACL, AclHeader("User:alice"), acl),
        ):
            await client.ask(address, RemotingCommand(code, header.to_ext(), body), TIMEOUT_MS)
        await client.close()

    cluster.run(create())


def test_outcome_of_a_checked_transaction_is_signed(clusters: Callable[..., Cluster], tmp_path: Path) -> None:
    path = tmp_path / "inner.key"
    write_credentials(path, INNER)
    cluster = clusters(
        brokers=1,
        authentication_enabled=True,
        authorization_enabled=True,
        inner_credentials_file=path,
        transaction_check_interval_ms=20,
        transaction_timeout_ms=0,
    )
    keys = {"access_key": INNER.access_key, "secret_key": INNER.secret_key}
    with Admin(config=ClientConfig(cluster.addresses, **keys)) as admin:
        admin.create_topic("T", queues=1)
    permit(cluster, "Topic:T")
    config = producer_config(cluster, **KEYS)
    unknown, commit = LocalTransactionState.UNKNOWN, LocalTransactionState.COMMIT
    with TransactionProducer(config=config, check_listener=lambda message: commit) as producer:
        producer.send_in_transaction(Message("T", b"body"), lambda message: unknown)
        with Admin(config=ClientConfig(cluster.addresses, **keys)) as admin:
            eventually(lambda: sum(admin.end_offsets("T").values()) == 1)


def producer_config(cluster: Cluster, **keys: str) -> ProducerConfig:
    return ProducerConfig(cluster.addresses, send_timeout_ms=TIMEOUT_MS, **keys)


@pytest.mark.parametrize("keys", [KEYS, {}], ids=["alice", "inner user"])
def test_signed_clients_send_and_consume(
    marked: Cluster, group: str, keys: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    topic = marked.topic(queues=1)
    permit(marked, f"Topic:{topic}", f"Group:{group}*")
    received: list[bytes] = []
    with caplog.at_level(logging.DEBUG):
        with Producer(config=producer_config(marked, **keys)) as producer:
            producer.send(topic, b"first")
            producer.send(topic, b"direct")  # in the caller's thread, because the route is cached
            producer.send_batch([Message(topic, b"batch")])
            producer.send_table(topic, pa.table({"body": [b"table"]}))

        async def send_async() -> None:
            async with aio.Producer(config=producer_config(marked, **keys)) as face:
                await face.send(topic, b"async")

        asyncio.run(send_async())
        config = PushConfig(marked.addresses, group=group, **keys)

        def listen(messages: list[MessageExt]) -> None:
            received.extend(message.body for message in messages)

        with PushConsumer(listener=listen, config=config) as consumer:
            consumer.subscribe(topic)
            eventually(lambda: len(received) == 5)
        pulling = ConsumerConfig(marked.addresses, group=f"{group}-pull", **keys)
        with PullConsumer(config=pulling) as puller:
            puller.subscribe(topic)
            polled: list[bytes] = []
            eventually(lambda: polled.extend(m.body for m in puller.poll()) or len(polled) == 5)
    assert sorted(received) == sorted(polled) == [b"async", b"batch", b"direct", b"first", b"table"]
    assert SECRET not in caplog.text
    assert INNER.secret_key not in caplog.text


@pytest.mark.parametrize(
    "keys", [{}, {"access_key": "alice", "secret_key": "guess"}, {"access_key": "nosuch", "secret_key": "x"}]
)
def test_clients_without_valid_keys_are_refused(
    protected: Cluster, keys: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = protected.topic(queues=1)
    permit(protected, f"Topic:{topic}")
    protected.await_registration()
    monkeypatch.delenv("RAYMQ_CREDENTIALS")
    refused = pytest.raises((PermissionDenied, SendFailed), match=r"not signed|signature is wrong")
    with Producer(config=producer_config(protected, **keys)) as producer, refused as caught:
        producer.send(topic, b"hello")
    assert SECRET not in str(caught.value)


def test_user_without_permission_gets_the_reason(protected: Cluster) -> None:
    topic = protected.topic(queues=1)
    permit(protected, "Topic:other")
    with (
        Producer(config=producer_config(protected, **KEYS)) as producer,
        pytest.raises((PermissionDenied, SendFailed), match="has no permission to pub on topic") as caught,
    ):
        producer.send(topic, b"hello")
    assert SECRET not in repr(caught.value)


def test_tools_use_the_credentials_file_of_the_environment(
    protected: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with Admin(protected.addresses) as admin:
        assert admin.broker_config("a")["authorizationEnabled"] == "true"
        assert INNER.secret_key not in str(admin.broker_config("a"))
    monkeypatch.delenv("RAYMQ_CREDENTIALS")
    with Admin(protected.addresses) as admin, pytest.raises(PermissionDenied, match="is not signed"):
        admin.broker_config("a")
    monkeypatch.setenv("RAYMQ_CREDENTIALS", str(tmp_path / "missing"))
    with pytest.raises(ConfigInvalid, match=r"RAYMQ_CREDENTIALS: .*missing"), Admin(protected.addresses):
        pass


@pytest.mark.parametrize("kind", [ClientConfig, ProducerConfig, ConsumerConfig, PushConfig])
def test_repr_of_settings_contains_no_secret(kind: type[ClientConfig]) -> None:
    config = kind(**KEYS)
    assert "alice" in repr(config)
    assert SECRET not in repr(config)
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize(
    "keys", [{"access_key": "a"}, {"secret_key": SECRET}, {"access_key": 1, "secret_key": 2}]
)
def test_incomplete_keys_are_refused_without_the_secret(keys: dict[str, str]) -> None:
    with pytest.raises(ConfigInvalid, match="give both or neither") as caught:
        ClientConfig(**keys)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("source", ["default", "setting", "environment"])
def test_signature_of_rocketmq_is_used_if_it_is_set(
    protected: Cluster, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    signatures: list[str] = []

    class Recorder:
        def before_call(self, address: str, command: RemotingCommand) -> None:
            pass

        def after_call(self, address: str, command: RemotingCommand, response: object) -> None:
            signatures.append(command.ext[SIGNATURE])

    topic = protected.topic(queues=1)
    permit(protected, f"Topic:{topic}")
    if source == "environment":
        monkeypatch.setenv("RAYMQ_SIGNATURE", "rocketmq")
    setting = {"signature": "rocketmq"} if source == "setting" else {}
    config = ProducerConfig(protected.addresses, call_hooks=[Recorder()], **setting, **KEYS)
    with Producer(config=config) as producer:
        producer.send(topic, b"1")
    assert signatures
    assert all(each.startswith("v2:") is (source == "default") for each in signatures)


def test_unknown_signature_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigInvalid, match="signature is 'sha1': use raymq or rocketmq"):
        ClientConfig(signature="sha1")
    monkeypatch.setenv("RAYMQ_SIGNATURE", "sha1")
    with pytest.raises(ConfigInvalid, match="RAYMQ_SIGNATURE is 'sha1'"):
        ClientConfig(**KEYS).request_signer()


def test_signature_covers_the_fields_that_other_hooks_add(protected: Cluster) -> None:
    class Tracing:
        def before_call(self, address: str, command: RemotingCommand) -> None:
            command.ext["traceId"] = "7"

        def after_call(self, address: str, command: RemotingCommand, response: object) -> None:
            pass

    topic = protected.topic(queues=1)
    permit(protected, f"Topic:{topic}")
    config = ProducerConfig(protected.addresses, call_hooks=[Tracing()], **KEYS)
    with Producer(config=config) as producer:
        assert producer.send(topic, b"1").queue_offset == 0
        assert producer.send(topic, b"2").queue_offset == 1


def test_secret_key_of_a_new_user_goes_to_no_broker_without_a_proof(protected: Cluster) -> None:
    protected.await_registration()
    with (
        listed_forger(protected.addresses[0], protected.run) as forger,
        Admin(protected.addresses) as admin,
    ):
        assert set(admin.brokers()) == {"AAA", "a"}
        with pytest.raises(BrokerUnreachable, match="is not signed with the key of the request"):
            admin.put_user("carol", "carol-secret")
        assert RequestCode.AUTH_LIST_USER in forger.codes
        assert not any(b"carol-secret" in body for body in forger.bodies)


def test_tools_with_the_keys_of_the_inner_user_use_no_unsigned_response(
    marked: Cluster,
) -> None:
    marked.await_registration()
    with listed_forger(marked.addresses[0], marked.run) as forger, Admin(marked.addresses) as admin:
        with pytest.raises(BrokerUnreachable, match="is not signed with the key of the request"):
            admin.broker_config("AAA")
        assert admin.broker_config("a")["brokerName"] == "a"
        admin.check_proof("a")
        assert not forger.learned
