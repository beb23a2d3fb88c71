"""Runs a chart in namespaces (`tests.kube.pods`), with a client outside of them.

`unshare --net --mount python -m tests.kube.run_pods DIRECTORY`: the client sends and receives, a pod
and its node are lost, a broker is added, and the head is lost. The last line of the output is DONE.
"""

from __future__ import annotations

import copy
import json
import os
import secrets
import sys
from pathlib import Path

import yaml

from actors.wire.signing import Credentials, write_credentials
from cluster.client import Admin, ConsumerConfig, Producer, ProducerConfig, PullConsumer
from tests.certificates import Authority
from tests.eventually import LIMIT_S, eventually
from tests.kube.charts import RELEASE, Document, all_of, groups_of, named, rendered
from tests.kube.pods import Kube

VALUES = "values-external"
HOST = "raymq.example.com"
NAMESERVER = f"{HOST}:30876"
TOPOLOGY = "/mnt/raymq/data/home/topology.yaml"
BROKERS = ("broker-a", "broker-b", "broker-c")
USERS = "accounts: [{accessKey: alice, secretKey: alices-key, topicPerms: [T=ANY], defaultGroupPerm: SUB}]"
ALICE = {"access_key": "alice", "secret_key": "alices-key"}
LIMIT_MS = int(LIMIT_S * 1000)
START_S = 240
COUNT = 100


def with_broker_c(documents: list[Document]) -> list[Document]:
    """Return the documents as Helm renders them when broker-c was added: copies of those of broker-b."""

    def third(document: Document) -> Document:
        text = json.dumps(document).replace("broker-b", "broker-c").replace("30912", "30913")
        return dict(json.loads(text))

    found = copy.deepcopy(documents)
    found += [third(all_of(found, kind)["raymq-broker-b"]) for kind in ("Service", "PersistentVolumeClaim")]
    groups = named(found, "RayCluster")["spec"]["workerGroupSpecs"]
    groups.append(third(groups[1]))
    data = named(found, "ConfigMap")["data"]
    topology = yaml.safe_load(data["topology.yaml"])
    topology["brokers"].append(third(topology["brokers"][1]))
    data["topology.yaml"] = yaml.safe_dump(topology)
    return found


class Scenario:
    """What the client outside does, and what happens to the pods meanwhile."""

    def __init__(self, root: Path) -> None:
        file = root / "inner.key"
        write_credentials(file, Credentials("inner", secrets.token_hex(16), is_inner=True))
        names = ("nameserver", "rebalancer", "gateway", "console", *BROKERS)
        authority = Authority(root / "tls")
        hosts = [HOST, *(f"{RELEASE}-{name}.default.svc" for name in names)]
        tls = dict(zip(("tls.crt", "tls.key"), authority.issue(hosts=hosts), strict=True))
        self.documents = rendered(VALUES)
        given = {
            "raymq-auth": {
                "inner.key": file.read_text(),
                "users.yml": USERS,
                **{name: secrets.token_hex(16) for name in ("ray-token", "metrics-token")},
            },
            "raymq-tls": {
                name: path.read_text() for name, path in (tls | {"ca.crt": authority.ca_file}).items()
            },
        }
        self.kube = Kube(root, self.documents, given)
        # Of the client that creates the topic; the others are those of a user.
        os.environ |= {"RAYMQ_CREDENTIALS": str(file), "RAYMQ_TLS_CA": str(authority.ca_file)}
        self.sent: list[bytes] = []

    def start(self, *names: str) -> None:
        for name, group in groups_of(self.kube.documents).items():
            if not names or name in names:
                self.kube.start_ray(group, name)

    def await_ready(self, pod: str) -> None:
        """Wait until the liveness probe and what the kubelet reads for the readiness probe succeed."""
        probe = ["bash", "/mnt/raymq/config/healthz.sh", "11911"]
        ready = ["curl", "--fail", "--silent", "http://localhost:11911/healthz"]
        eventually(lambda: self.kube.pods[pod].succeeds(*ready), f"{pod} to be ready", within_s=START_S)
        assert self.kube.pods[pod].succeeds(*probe)

    def await_applied(self) -> None:
        launcher = self.kube.pods["launcher"]
        eventually(
            lambda: launcher.succeeds("test", "-f", "/tmp/applied"), "the launcher", within_s=2 * START_S
        )

    def send(self) -> set[str]:
        """Send `COUNT` messages, and return the brokers that have them."""
        brokers = set()
        config = ProducerConfig(group="P", send_timeout_ms=LIMIT_MS, delivery_timeout_ms=LIMIT_MS, **ALICE)
        with Producer(NAMESERVER, config=config) as producer:
            for _ in range(COUNT):
                body = b"%d" % len(self.sent)
                brokers.add(producer.send("T", body).queue.broker_name)
                self.sent.append(body)
        return brokers

    def receive_all(self, group: str) -> None:
        """Receive all messages that were acknowledged."""
        received: set[bytes] = set()
        with PullConsumer(NAMESERVER, group, config=ConsumerConfig(**ALICE)) as consumer:
            consumer.subscribe("T")

            def has_all() -> bool:
                received.update(message.body for message in consumer.poll(1000, 200))
                return received >= set(self.sent)

            eventually(has_all, f"{len(self.sent)} messages")

    def run(self) -> None:
        self.start()
        self.kube.start_launcher()
        self.await_applied()
        for pod in BROKERS[:2]:
            self.await_ready(pod)
        assert self.kube.pods["headgroup"].succeeds("raymq", "status", TOPOLOGY)
        with Admin(NAMESERVER) as admin:
            admin.create_topic("T", queues=2)
        assert self.send() == {"broker-a", "broker-b"}
        self.receive_all("before")
        self.say("sent and received from outside")

        self.kube.lose("broker-b")
        assert self.send() <= {"broker-a", "broker-b"}
        self.start("broker-b")
        self.await_ready("broker-b")
        self.receive_all("after-a-pod")
        self.say("lost a pod and its node")

        self.kube.apply(with_broker_c(self.documents))
        self.start("broker-c")
        self.kube.start_launcher()
        self.await_applied()
        with Admin(NAMESERVER) as admin:
            admin.create_topic("T", queues=2)
        assert self.send() == set(BROKERS)
        self.receive_all("after-a-third")
        self.say("added a broker")

        self.start("headgroup")
        self.start(
            "broker-a", "broker-b", "broker-c"
        )  # Ray ends them within a minute of the loss of their head
        for pod in BROKERS:
            self.await_ready(pod)
        self.await_applied()
        self.send()
        self.receive_all("after-the-head")
        self.say("lost the head")

    def say(self, what: str) -> None:
        print(f"{what}: {len(self.sent)} messages", flush=True)  # noqa: T201 - the output of the run


def main() -> None:
    scenario = Scenario(Path(sys.argv[1]))
    try:
        scenario.run()
    except BaseException:
        print(scenario.kube.log_of("launcher"), file=sys.stderr)  # noqa: T201 - why the run failed
        raise
    finally:
        scenario.kube.close()
    print("DONE", flush=True)  # noqa: T201 - the test's result


if __name__ == "__main__":
    main()
