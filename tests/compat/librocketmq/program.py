"""Client program of the PyPI package `rocketmq` 0.4.4 (librocketmq, C++), run in a separate environment.

    python -P program.py NAMESERVER TOPIC GROUP

Prints one JSON object with the results of the sends and the messages that each kind of consumer received.
"""

from __future__ import annotations

import json
import os
import sys
import threading

from rocketmq.client import Message, Producer, PullConsumer, PushConsumer  # type: ignore[import-not-found]

TIMEOUT_S = 60 * float(os.environ.get("RAYMQ_TEST_TIME_SCALE", "1"))  # same as tests.eventually.LIMIT_S
ONE_BY_ONE = 10


def message(topic: str, number: int) -> Message:
    made = Message(topic)
    made.set_keys(f"k{number}")
    made.set_tags("odd" if number % 2 else "even")
    made.set_property("number", str(number))
    made.set_body(f"body {number}")
    return made


def send_all(nameserver: str, topic: str, group: str) -> dict[str, object]:
    producer = Producer(f"P{group}")
    producer.set_namesrv_addr(nameserver)
    producer.start()
    completed = threading.Event()
    results: list[str] = []

    def finish(text: str) -> None:
        results.append(text)
        completed.set()

    statuses = [producer.send_sync(message(topic, number)).status.name for number in range(ONE_BY_ONE)]
    producer.send_oneway(message(topic, 10))
    orderly = producer.send_orderly(message(topic, 11), 7).status.name
    producer.send_async(
        message(topic, 12), lambda result: finish(result.status.name), lambda error: finish(str(error))
    )
    completed.wait(TIMEOUT_S)
    producer.shutdown()
    return {"sync": statuses, "orderly": orderly, "async": results}


def consume(
    nameserver: str, topic: str, group: str, expected: int, tags: str, *, orderly: bool
) -> list[tuple[str, str, str, str]]:
    got: list[tuple[str, str, str, str]] = []
    all_received = threading.Event()

    def listener(received: object) -> None:
        fields = (received.keys, received.tags, received.body, received.get_property("number"))  # type: ignore[attr-defined]
        got.append(tuple(field.decode() for field in fields))  # type: ignore[arg-type]
        if len(got) >= expected:
            all_received.set()

    consumer = PushConsumer(group, orderly=orderly)
    consumer.set_namesrv_addr(nameserver)
    consumer.subscribe(topic, listener, tags)
    consumer.start()
    all_received.wait(TIMEOUT_S)
    consumer.shutdown()
    return sorted(got)


def pull(nameserver: str, topic: str, group: str) -> list[str]:
    consumer = PullConsumer(group)
    consumer.set_namesrv_addr(nameserver)
    consumer.start()
    bodies = sorted(received.body.decode() for received in consumer.pull(topic))
    consumer.shutdown()
    return bodies


def main() -> None:
    nameserver, topic, group = sys.argv[1:]
    report: dict[str, object] = {"sent": send_all(nameserver, topic, group)}
    report["pushed"] = consume(nameserver, topic, f"{group}_push", 13, "*", orderly=False)
    report["in_order"] = consume(nameserver, topic, f"{group}_order", 6, "odd", orderly=True)
    report["pulled"] = pull(nameserver, topic, f"{group}_pull")
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
