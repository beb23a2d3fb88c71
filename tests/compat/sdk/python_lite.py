"""Sends and receives lite messages with RocketMQ's Python SDK: endpoints.

The push consumer fails at its first message; the simple consumer receives another lite topic.
"""

import queue
import sys

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    LitePushConsumer,
    LiteSimpleConsumer,
    Message,
    MessageListener,
    Producer,
)
from rocketmq.v5.exception.client_exception import LiteSubscriptionQuotaExceededException

TOPIC = "Chats"
configuration = ClientConfiguration(sys.argv[1], Credentials())
pushed = queue.Queue()
deliveries = []


class Listener(MessageListener):
    def consume(self, message):
        deliveries.append(message.body)
        pushed.put(f"{message.lite_topic}:{message.body.decode()}")
        return ConsumeResult.FAILURE if len(deliveries) == 1 else ConsumeResult.SUCCESS


def subscribed(consumer, lite_topic):
    """Subscribe a lite topic; return False while the SDK has no settings, and takes the quota for 0."""
    try:
        consumer.subscribe_lite(lite_topic)
    except LiteSubscriptionQuotaExceededException:
        return False
    return True


producer = Producer(configuration, (TOPIC,))
producer.startup()
push = LitePushConsumer(configuration, "fifo", TOPIC, Listener())
push.startup()
while not subscribed(push, "a"):
    pass  # the settings arrive within milliseconds
simple = LiteSimpleConsumer(TOPIC, configuration, "plain", 5)
simple.startup()
while not subscribed(simple, "b"):
    pass  # the settings arrive within milliseconds
for name, body in (("a", b"a0"), ("a", b"a1"), ("b", b"b0")):
    message = Message()
    message.topic, message.lite_topic, message.body = TOPIC, name, body
    producer.send(message)
sys.stdout.write(f"PUSHED {pushed.get()} {pushed.get()} {pushed.get()}\n")
received = []
while not received:
    received = simple.receive(32, 15)
simple.ack(received[0])
sys.stdout.write(f"RECEIVED {received[0].lite_topic}:{received[0].body.decode()}\n")
for client in (push, simple, producer):
    client.shutdown()
sys.stdout.write("DONE\n")
