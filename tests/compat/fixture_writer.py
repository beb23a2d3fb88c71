"""Writes the fixtures `transactions`, `retries` and `offsets` with RocketMQ 5.3.3 and its Java clients.

    uv run python -m tests.compat.fixture_writer DIRECTORY

writes rocketmq-5.3.3-transactions.tar.gz and rocketmq-5.3.3-retries.tar.gz, the stores of a broker that was
shut down cleanly, and offsets/CLIENT.json, the offset file of a broadcasting consumer of each client release.
tests/fixtures/README.md describes their contents.
"""

from __future__ import annotations

import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.compat.agent import Agent
from tests.compat.build import CLIENT, OLD_CLIENT, JavaKit, java_kit
from tests.compat.rocketmq import RocketMQ
from tests.compat.store_writer import STORE_CONF
from tests.eventually import eventually

AN_HOUR_MS = "3600000"
SETTINGS = {
    **STORE_CONF,
    "autoCreateTopicEnable": "false",
    "timerWheelEnable": "false",
    # No transaction is checked.
    "transactionCheckInterval": AN_HOUR_MS,
    "transactionTimeOut": AN_HOUR_MS,
    "transactionOpBatchInterval": "100",
    # The first retry is at level 3, the second at level 4.
    "messageDelayLevel": "1s 5s 1s 1h",
}
TIMEOUT_MS = 60_000


def write_transactions(client: Agent, broker: RocketMQ) -> None:
    """Write 3 committed, 3 rolled-back and 10 open transactions."""
    client.create_topic(broker.broker_address, "Orders", queues=2)
    client.publish_queues("Orders")
    client.call("transaction_start", name="producer", group="G_orders")

    def send(body: str, state: str) -> None:
        fields = {"name": "producer", "topic": "Orders", "body": body, "state": state}
        assert client.call("transaction_send", **fields)["status"] == "SEND_OK"

    for number in range(3):
        send(f"committed {number}", "COMMIT_MESSAGE")
        send(f"rolled back {number}", "ROLLBACK_MESSAGE")
    for number in range(10):
        send(f"open {number}", "UNKNOW")
    half, op = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
    eventually(lambda: sum(queue["max"] for queue in client.offsets("Orders")) == 3, "the commits")
    eventually(lambda: [client.offsets(topic)[0]["max"] > 0 for topic in (half, op)] == [True, True])
    client.call("transaction_stop", name="producer")


def write_retries(client: Agent, broker: RocketMQ) -> None:
    """Write 6 dead letters, and 4 messages whose second retry is due after an hour."""
    client.create_topic(broker.broker_address, "Payments", queues=2)
    client.publish_queues("Payments")
    for name, count, max_retries in (("dead", 6, 1), ("pending", 4, 5)):
        client.call(
            "push_start",
            name=name,
            group="G_payments",
            topic="Payments",
            failures=100,
            maxReconsumeTimes=max_retries,
        )
        client.send_dispatched([{"topic": "Payments", "body": f"{name} {n}"} for n in range(count)])
        # Each message is consumed twice: at first, and as the first retry.
        received = client.call("push_received", name=name, count=2 * count, timeoutMs=TIMEOUT_MS)
        assert len(received) == 2 * count, received
        client.call("push_stop", name=name)


def write_offsets(client: Agent, broker: RocketMQ) -> None:
    """Consume 1, 2 and 3 messages of the three queues as a broadcasting consumer."""
    client.create_topic(broker.broker_address, "Prices", queues=3)
    queues = client.publish_queues("Prices")
    client.call("push_start", name="all", group="G_prices", topic="Prices", model="BROADCASTING")
    numbered = [(queue, n) for queue in queues for n in range(int(queue["queueId"]) + 1)]
    client.send_dispatched([{**queue, "body": f"{n}"} for queue, n in numbered])
    received = client.call("push_received", name="all", count=len(numbered), timeoutMs=TIMEOUT_MS)
    assert len(received) == len(numbered), received
    client.call("push_stop", name="all")


Write = Callable[[Agent, RocketMQ], None]


def run(kit: JavaKit, root: Path, write: Write, profile: str = CLIENT) -> RocketMQ:
    """Run `write` with a broker and a client below `root`, and return the broker, which is stopped."""
    with RocketMQ(kit, root, SETTINGS, heap="512m") as broker:
        with Agent(kit, profile, broker.nameserver_address, root / "client") as client:
            write(client, broker)
            client.close()
        broker.stop_cleanly()
    return broker


def pack(store: Path, name: str, into: Path) -> None:
    """Write the files of a store to rocketmq-5.3.3-NAME.tar.gz, without users of this machine."""

    def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = "root"
        return member

    with tarfile.open(into / f"rocketmq-5.3.3-{name}.tar.gz", "w:gz") as archive:
        archive.add(store, f"{name}/store", filter=anonymous)


def main() -> None:
    """Write all fixtures to the directory given as argument."""
    into = Path(sys.argv[1])
    (into / "offsets").mkdir(parents=True, exist_ok=True)
    kit = java_kit()
    with tempfile.TemporaryDirectory() as temporary:
        for name, write in (("transactions", write_transactions), ("retries", write_retries)):
            pack(run(kit, Path(temporary, name), write).store_root, name, into)
        for profile in (CLIENT, OLD_CLIENT):
            root = Path(temporary, profile)
            run(kit, root, write_offsets, profile)
            [found] = (root / "client" / ".rocketmq_offsets").glob("*/G_prices/offsets.json")
            shutil.copy(found, into / "offsets" / f"{profile}.json")


if __name__ == "__main__":
    main()
