"""Commands on topics and messages: topic, message, send, tail."""
