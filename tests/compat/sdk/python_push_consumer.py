"""Receives messages with the push consumer of RocketMQ's Python SDK: endpoints, topic, count.

The first delivery of every fifth message fails, so that it is delivered again.
"""

import sys
import threading

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    MessageListener,
    PushConsumer,
)

endpoints, topic, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
bodies, failed, done = set(), set(), threading.Event()


class Listener(MessageListener):
    def consume(self, message):
        body = message.body
        if int(body) % 5 == 0 and body not in failed:
            failed.add(body)
            return ConsumeResult.FAILURE
        bodies.add(body)
        if len(bodies) == count:
            done.set()
        return ConsumeResult.SUCCESS


configuration = ClientConfiguration(endpoints, Credentials())
consumer = PushConsumer(configuration, "push", Listener(), {topic: FilterExpression()})
consumer.startup()
sys.stdout.write("READY\n")
sys.stdout.flush()
done.wait()
consumer.shutdown()
sys.stdout.write(f"RECEIVED {len(bodies)}\n")
