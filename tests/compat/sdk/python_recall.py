"""Recalls the first of two delayed messages with RocketMQ's Python SDK for gRPC: endpoints and topic."""

import sys
import time

from rocketmq import ClientConfiguration, Credentials, Message, Producer

endpoints, topic = sys.argv[1], sys.argv[2]
producer = Producer(ClientConfiguration(endpoints, Credentials()), (topic,))
producer.startup()


def send(body, delay_s):
    message = Message()
    message.topic, message.body = topic, body
    message.delivery_timestamp = int(time.time()) + delay_s
    return producer.send(message)


handle = send(b"recalled", 8).recall_handle
send(b"kept", 9)
producer.recall_message(topic, handle)
producer.shutdown()
sys.stdout.write("RECALLED\n")
