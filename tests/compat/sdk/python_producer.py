"""Sends messages with RocketMQ's Python SDK for gRPC: endpoints, topic and count are the arguments."""

import sys

from rocketmq import ClientConfiguration, Credentials, Message, Producer

endpoints, topic, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
producer = Producer(ClientConfiguration(endpoints, Credentials()), (topic,))
producer.startup()
for number in range(count):
    message = Message()
    message.topic, message.body, message.tag, message.keys = topic, b"%d" % number, "t", f"k{number}"
    message.add_property("colour", "blue")
    producer.send(message)
producer.shutdown()
sys.stdout.write(f"SENT {count}\n")
