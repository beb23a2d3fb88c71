"""The metrics of a broker that RocketMQ 5 has too, with RocketMQ's names, labels, types and units."""
