"""Commands and clients with the keys of the inner user, while the routes name a foreign broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import typer
from typer.testing import CliRunner

from actors.host import ray_port
from actors.transport.client import RemotingClient
from actors.transport.request import RequestContext
from actors.wire.codes import RayMQRequestCode, RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import NotProven
from actors.wire.signing import SIGNATURE, Credentials, Signer, write_credentials
from cluster.autoscale.controller import BrokerUnavailable
from cluster.autoscale.elastic_fleet import ElasticFleet
from cluster.cli.main import build
from cluster.client import (
    Admin,
    ClientConfig,
    ClientError,
    ConsumerConfig,
    LocalTransactionState,
    Message,
    PopConfig,
    PopConsumer,
    ProducerConfig,
    PullConsumer,
    PushConfig,
    PushConsumer,
    TransactionProducer,
)
from cluster.client.errors import BrokerUnreachable
from cluster.control import fleet
from cluster.control.driver import Driver
from cluster.control.health import probe
from cluster.control.kinds import BROKER, NAMESERVER
from cluster.control.launch_report import Reporter
from cluster.control.migration import migrate_broker
from cluster.control.plan import Running
from cluster.control.promotion import Promotion
from cluster.control.raft_groups import RaftGroups
from cluster.control.specs import ActorSpec, ProcessKind
from cluster.control.topology.topology import Topology
from cluster.control.topology.topology_file import Source
from cluster.views.raft_migration import MemberSteps
from cluster.waiting import Waiting
from jobs.job_errors import FetchFailed
from jobs.reading.connection import ReaderConnection
from store.common.clock import SystemClock
from store.message.message_queue import MessageQueue
from tests.actors.broker.brokers import TIMEOUT_MS
from tests.actors.host.foreign_peers import Forger, listed_forger, success
from tests.cluster.cli.test_help import pages
from tests.cluster.client.conftest import Cluster
from tests.eventually import eventually
from tests.faults.scenarios import TickingClock

INNER = Credentials("inner", "inner-secret", is_inner=True)
CODES = [*RequestCode, *RayMQRequestCode]
ENDLESS = {"top", "console", "reindex", "export", "import"}
"""Commands that serve until they are stopped, and jobs of Spark and Ray: they read with an Admin, too."""
VALUES = {"topic": "T", "resource": "Topic:T", "actions": "Pub"}
REFUSED = {
    *("acl delete", "acl list", "acl set", "group create", "group delete", "topic create"),
    *("transfer --yes", "user create", "user delete", "user list", "replica add", "dlq purge"),
    *("send T", "tail --no-follow"),
}
"""Commands about rights, secrets, members, topics and messages: the error names the missing proof."""
MORE = [
    ["send", "T", "secret", "--delay-level", "1"],
    ["tail", "T", "--no-follow", "--from", "first"],
    ["tail", "T", "--no-follow", "--from", "first", "--max", "1"],
]
"""Ways to send and read that optional arguments select."""


def own_key(context: RequestContext) -> RemotingCommand:
    """Sign the response as an ordinary user does."""
    signature = context.command.ext.get(SIGNATURE, "")
    return Signer(Credentials("mallory", "secret")).signed_response(signature, success(context))


class Replay:
    """Signs each response with the signature of a genuine one, to another request."""

    def __init__(self) -> None:
        signer, request = Signer(INNER), RemotingCommand(RayMQRequestCode.PROVE_PEER)
        signer.sign(request, SystemClock().wall_ms())
        self.signature = signer.signed_response(request.ext[SIGNATURE], RemotingCommand.response()).ext

    def __call__(self, context: RequestContext) -> RemotingCommand:
        return RemotingCommand.response(ext=dict(self.signature))


RESPONSES: list[Callable[[RequestContext], RemotingCommand]] = [success, own_key, Replay()]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "inner.key"
    write_credentials(path, INNER)
    return path


@pytest.fixture(scope="module")
def protected(tmp_path_factory: pytest.TempPathFactory, keys: Path) -> Iterator[Cluster]:
    """A broker with access control and the topic T; the nameserver accepts every registration."""
    made = Cluster(
        tmp_path_factory.mktemp("protected"),
        brokers=1,
        authentication_enabled=True,
        authorization_enabled=True,
        inner_credentials_file=keys,
        register_interval_ms=3_600_000,  # or the broker takes its name in the routes back
    )
    made.await_registration()
    with Admin(config=ClientConfig(made.addresses, access_key="inner", secret_key="inner-secret")) as admin:
        admin.create_topic("T", queues=1)
    yield made
    made.stop()


@pytest.fixture(params=RESPONSES, ids=["unsigned", "own key", "replayed"])
def forger(
    request: pytest.FixtureRequest, protected: Cluster, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Forger]:
    """A broker that has registered the name and id of the only broker."""
    monkeypatch.setenv("RAYMQ_CREDENTIALS", str(keys))
    with listed_forger(protected.address, protected.run, "a", request.param) as made:
        yield made


def test_foreign_broker_gets_no_request_of_an_admin_whatever_its_code(
    protected: Cluster, forger: Forger
) -> None:
    async def story() -> None:
        config = ClientConfig(protected.addresses)
        client = RemotingClient(SystemClock(), signer=config.request_signer())
        for code in CODES:
            with pytest.raises(NotProven):
                await client.invoke(forger.address, RemotingCommand(code, {}, b"secret"), TIMEOUT_MS)
        await client.close()

    protected.run(story())
    assert not forger.learned


def commands() -> Iterator[list[str]]:
    """Yield each command that sends requests to the brokers of a nameserver, with all that it requires."""
    for page in pages():
        command: Any = typer.main.get_command(build(page))
        for name in page:
            command = command.commands[name]
        options = [each for each in command.params if each.param_type_name == "option"]
        names = {name for each in options for name in (*each.opts, *each.secondary_opts)}
        if "--nameserver" not in names or page[0] in ENDLESS:
            continue
        given = [name for name in ("--yes", "--no-follow") if name in names]
        given += [text for each in options if each.required for text in (each.opts[0], value_of(each))]
        required = [each for each in command.params if each.param_type_name == "argument" and each.required]
        yield [*page, *given, *map(value_of, required)]


def value_of(parameter: Any) -> str:
    return VALUES.get(parameter.name, "1" if parameter.min is not None else "a")


def test_foreign_broker_gains_nothing_from_any_command(protected: Cluster, forger: Forger) -> None:
    refused = set()
    for arguments in [*commands(), *MORE]:
        words = [*arguments, "--nameserver", protected.address]
        result = CliRunner().invoke(build(words), words, input="secret\nsecret\n")
        assert result.exception is None or isinstance(result.exception, SystemExit), (words, result.exception)
        assert not forger.learned, (words, forger.learned)
        if "is not signed with the key of the request" in result.stderr:
            assert result.exit_code == 1, words
            refused.add(" ".join(words[:2]))
    assert refused >= REFUSED, REFUSED - refused


def send(nameserver: str) -> None:
    config = ProducerConfig(nameserver, send_timeout_ms=100, delivery_timeout_ms=100, trace=True)
    commit = LocalTransactionState.COMMIT
    with TransactionProducer(config=config, check_listener=lambda message: commit) as producer:
        producer.queues("T")  # so that `send` uses the connection of this thread
        message = Message("T", b"secret", keys=["k"])
        for way in (
            lambda: producer.send(message),
            lambda: producer.send(message, queue=MessageQueue("T", "a", 0)),
            lambda: producer.send_async(message).result(),
            lambda: producer.send_batch([message]),
            lambda: producer.send_many("T", [b"secret"]),
            lambda: producer.send_table("T", pa.table({"body": [b"secret"]})),
            lambda: producer.request(message, timeout_ms=100),
            lambda: producer.send_in_transaction(message, lambda message: commit),
        ):
            with pytest.raises(ClientError):
                way()
        producer.send_oneway(message)


def pull(nameserver: str) -> None:
    config = ConsumerConfig(nameserver, group="pull", consume_from="earliest", commit_timeout_ms=100)
    with PullConsumer(config=config) as consumer:
        for way in (consumer.beginning_offset, consumer.end_offset):
            with pytest.raises(ClientError):
                way(MessageQueue("T", "a", 0))
        consumer.subscribe("T")
        assert consumer.poll(timeout_ms=100) == []


def push(nameserver: str, forger: Forger) -> None:
    received: list[object] = []
    config = PushConfig(nameserver, group="push", consume_from="earliest", commit_timeout_ms=100)
    asked = len(forger.codes)
    with PushConsumer(listener=received.extend, config=config) as consumer:
        consumer.subscribe("T")
        eventually(lambda: len(forger.codes) > asked + 2)
    assert not received


def pop(nameserver: str) -> None:
    with PopConsumer(config=PopConfig(nameserver, group="pop")) as consumer, pytest.raises(ClientError):
        consumer.receive("T")


@pytest.mark.parametrize("forger", [Replay()], ids=["replayed"], indirect=True)
def test_foreign_broker_gets_no_message_of_a_client_and_makes_it_use_none(
    protected: Cluster, forger: Forger
) -> None:
    for use in (send, pull, lambda address: push(address, forger), pop):
        use(protected.address)
        assert not forger.learned, forger.learned
    with pytest.raises(FetchFailed, match="is not signed with the key of the request"):
        ReaderConnection(forger.address)


def test_foreign_broker_gains_nothing_from_an_autoscaler(
    protected: Cluster, forger: Forger, tmp_path: Path
) -> None:
    """Its figures are those of Ray's actors. It asks brokers for topics, to create and to export them."""
    topology = Topology.model_validate(
        {
            "nameservers": [{"listen_port": port_of(protected.address)}],
            "brokers": [{"pattern": "b{n}", "min": 1, "max": 1, "resource": "r"}],
            "elastic_topics": "*",
        }
    )
    brokers = ElasticFleet(topology, tmp_path, export_to=tmp_path)
    for act in (brokers.equip, brokers.export):
        with pytest.raises(BrokerUnavailable, match="is not signed with the key of the request"):
            act("a")
    assert not forger.learned
    assert not list(tmp_path.iterdir())


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


class Replicas:
    """The replicas of the broker `a`, as Ray's actors report them, and a driver without Ray."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, nameserver: str, broker: dict[str, Any], **settings: str
    ) -> None:
        topology = Topology.model_validate({"brokers": [{"name": "a", **broker}]})
        self.done: list[str] = []
        self.nameserver = self._spec(NAMESERVER, "nameserver-0", port_of(nameserver))
        self.specs = [self._spec(BROKER, "a-0", 1, **settings), self._spec(BROKER, "a-1", 2, role="slave")]
        details = {"raft_state": "leader", "written": 7}
        running = [Running(topology.namespace, s.name, s, "serving", details=details) for s in self.specs]
        monkeypatch.setattr(ray_port, "recalled_keys", lambda *_: [])
        monkeypatch.setattr(fleet, "observe", lambda _: running)
        monkeypatch.setattr(fleet, "stop", lambda _, name: self.done.append(name))
        monkeypatch.setattr(Driver, "stop", lambda _, action, **__: self.done.append(action.name))
        monkeypatch.setattr(Driver, "connected", lambda _: nullcontext())
        monkeypatch.setattr(Driver, "plan", lambda *_: (None, [self.nameserver, *self.specs]))
        self.driver = Driver(topology, Source("t.yaml", {}, {}), Reporter(), migrating="a", dry_run=False)
        self.driver.raft = RaftGroups(self.driver.home, topology.namespace, lambda *_: None)

    def _spec(self, kind: ProcessKind, name: str, port: int, **settings: str) -> ActorSpec:
        address = ("127.0.0.1", port)
        return ActorSpec(kind, name, "C", {"broker_name": "a", **settings}, address, address, "r", "/s")


def test_foreign_broker_gains_nothing_from_a_migration(
    protected: Cluster, forger: Forger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYMQ_HOME", str(tmp_path))
    clock = TickingClock()
    steps = MemberSteps(Admin, lambda line: None, Waiting(clock, lambda _: clock.leap(100_000)))
    replicas = Replicas(monkeypatch, protected.address, {}, replication="raft")
    with pytest.raises(BrokerUnreachable, match="is not signed with the key of the request"):
        migrate_broker(replicas.driver, "a", steps)
    with pytest.raises(BrokerUnreachable, match="is not signed with the key of the request"):
        steps.add(protected.address, "a", [forger.address])
    assert not forger.learned
    assert not replicas.done


def test_promotion_asks_no_address_of_the_routes(
    protected: Cluster, forger: Forger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ends of logs, and which replicas serve, are what Ray's actors report."""
    monkeypatch.setenv("RAYMQ_HOME", str(tmp_path))
    replicas = Replicas(monkeypatch, protected.address, {"replicas": 2, "replicas_on_one_node": True})
    promotion = Promotion(replicas.driver.topology, tmp_path, "a-1")
    assert [master.name for master in promotion.masters] == ["a-0"]
    assert "a-1 has the log of a up to 7" in list(promotion.preview())
    assert probe(replicas.nameserver, replicas.specs).startswith("has not registered a-0")
    assert not forger.codes
