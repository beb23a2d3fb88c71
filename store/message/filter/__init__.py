"""SQL92 filter expressions: grammar, compilation and evaluation as in RocketMQ's filter module."""
