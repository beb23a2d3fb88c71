"""Messages and their codecs: the lowest layer, in plain Python, imported by clients and brokers."""
