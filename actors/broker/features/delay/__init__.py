"""Delay levels: messages that are delivered after one of RocketMQ's fixed delays."""
