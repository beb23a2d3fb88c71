"""RocketMQ's timer: a wheel of seconds over a log of pending timer messages (store format 12)."""
