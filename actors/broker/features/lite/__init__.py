"""Lite topics: very many short-lived ordered queues under one topic (RocketMQ RIP-83)."""
