"""RocketMQ's remoting protocol without I/O: frames, headers, codes, bodies and signatures."""
