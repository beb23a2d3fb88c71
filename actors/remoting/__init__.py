"""RocketMQ's remoting protocol: frames, headers, codes and bodies, and the connections that carry them."""
