"""Lite topics: very many short queues of one topic, in one index for all of them."""
