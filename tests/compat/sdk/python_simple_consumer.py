"""Receives and acks messages with the simple consumer of RocketMQ's Python SDK: endpoints, topic, count."""

import sys

from rocketmq import ClientConfiguration, Credentials, FilterExpression, SimpleConsumer

endpoints, topic, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
consumer = SimpleConsumer(
    ClientConfiguration(endpoints, Credentials()), "simple", {topic: FilterExpression()}
)
consumer.startup()
sys.stdout.write("READY\n")
sys.stdout.flush()
received = 0
while received < count:
    for message in consumer.receive(16, 30) or ():
        consumer.ack(message)
        received += 1
consumer.shutdown()
sys.stdout.write(f"RECEIVED {received}\n")
