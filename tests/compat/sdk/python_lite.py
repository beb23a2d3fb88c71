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

TOPIC = "Chats"
configuration = ClientConfiguration(sys.argv[1], Credentials())
pushed = queue.Queue()
deliveries = []


class Listener(MessageListener):
    def consume(self, message):
        deliveries.append(message.body)
        pushed.put(f"{message.lite_topic}:{message.body.decode()}")
        return ConsumeResult.FAILURE if len(deliveries) == 1 else ConsumeResult.SUCCESS


producer = Producer(configuration, (TOPIC,))
producer.startup()
push = LitePushConsumer(configuration, "fifo", TOPIC, Listener())
push.startup()
push.subscribe_lite("a")
simple = LiteSimpleConsumer(TOPIC, configuration, "plain", 5)
simple.startup()
simple.subscribe_lite("b")
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
