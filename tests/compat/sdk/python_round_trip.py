"""Sends a message with RocketMQ's Python SDK, receives and acks it: endpoints and topic."""

import sys

from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer

configuration = ClientConfiguration(sys.argv[1], Credentials())
topic = sys.argv[2]
consumer = SimpleConsumer(configuration, "round-trip", {topic: FilterExpression()}, await_duration=1)
consumer.startup()
consumer.receive(1, 30)  # a new group begins at the end of the topic
producer = Producer(configuration, (topic,))
producer.startup()
message = Message()
message.topic, message.body = topic, b"hello"
producer.send(message)
received = None
while not received:
    received = consumer.receive(1, 30)
consumer.ack(received[0])
producer.shutdown()
consumer.shutdown()
sys.stdout.write(f"ACKED {received[0].body.decode()}\n")
