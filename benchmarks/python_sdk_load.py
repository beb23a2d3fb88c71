"""Sends with RocketMQ's Python SDK for gRPC: endpoints, topic, threads, size, warm-up and seconds.

The threads share one producer; each sends one message after another. Prints MEASURING after the warm-up, and
at the end one line of JSON as `tests/compat/java/client/LoadProducer.java`.
"""

import json
import sys
import threading
import time

from rocketmq import ClientConfiguration, Credentials, Message, Producer

endpoints, topic = sys.argv[1:3]
threads, size, warmup_s, seconds = map(int, sys.argv[3:7])
state = "warm-up"
latencies: list[float] = []
errors: list[str] = []
producer = Producer(ClientConfiguration(endpoints, Credentials()), (topic,))
producer.startup()


def send() -> None:
    """Send messages until the end."""
    while state != "stopped":
        message = Message()
        message.topic, message.body = topic, b"x" * size
        counted = state == "measuring"
        begin = time.perf_counter()
        try:
            producer.send(message)
        except Exception as error:  # noqa: BLE001 - the SDK raises many kinds; any makes the run invalid
            errors.append(repr(error))
            continue
        if counted:
            latencies.append(time.perf_counter() - begin)


senders = [threading.Thread(target=send, daemon=True) for _ in range(threads)]
for sender in senders:
    sender.start()
time.sleep(warmup_s)
sys.stdout.write("MEASURING\n")
sys.stdout.flush()
state = "measuring"
begin = time.perf_counter()
time.sleep(seconds)
elapsed_s = time.perf_counter() - begin
state = "stopped"
for sender in senders:
    sender.join()
ordered = sorted(latencies)
figures = {
    "messagesPerSecond": len(ordered) / elapsed_s,
    "p50Ms": ordered[len(ordered) // 2] * 1e3,
    "p99Ms": ordered[len(ordered) * 99 // 100] * 1e3,
    "meanMs": sum(ordered) / len(ordered) * 1e3,
    "maxMs": ordered[-1] * 1e3,
    "messages": len(ordered),
    "failed": len(errors),
    "notOk": 0,
    "firstError": errors[0] if errors else "",
    "seconds": elapsed_s,
}
sys.stdout.write(json.dumps(figures) + "\n")
sys.stdout.flush()
