"""RocketMQ's timer: a wheel of seconds over a log of pending timer messages.

See docs/store-format.md#timer-messages.
"""
