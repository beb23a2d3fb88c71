"""The gRPC gateway: serves RocketMQ 5's clients by translation to the remoting protocol."""
