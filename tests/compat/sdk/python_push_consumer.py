"""Receives messages with the push consumer of RocketMQ's Python SDK: endpoints, topic, count.

Optional further arguments are the type of a filter, TAG or SQL, and its expression.

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
from rocketmq.grpc_protocol import FilterType

endpoints, topic, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
chosen = FilterExpression(sys.argv[5], FilterType.Value(sys.argv[4])) if sys.argv[4:] else FilterExpression()
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
consumer = PushConsumer(configuration, "push", Listener(), {topic: chosen})
consumer.startup()
sys.stdout.write("READY\n")
sys.stdout.flush()
done.wait()
consumer.shutdown()
sys.stdout.write(f"RECEIVED {len(bodies)}\n")
