"""Sends messages with RocketMQ's Python SDK for gRPC: endpoints, topic and count are the arguments."""

import sys

from rocketmq import ClientConfiguration, Credentials, Message, Producer

endpoints, topic, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
producer = Producer(ClientConfiguration(endpoints, Credentials()), (topic,))
producer.startup()
for number in range(count):
    message = Message()
    message.topic, message.body, message.keys = topic, b"%d" % number, f"k{number}"
    message.tag = "odd" if number % 2 else "even"
    message.add_property("colour", "blue")
    message.add_property("number", str(number))
    producer.send(message)
producer.shutdown()
sys.stdout.write(f"SENT {count}\n")
