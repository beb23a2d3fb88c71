"""Retries: messages that a consumer could not process, and the dead letters among them."""
