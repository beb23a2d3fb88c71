"""The administrator's client, blocking and async."""
