"""Messages and their codecs: the bottom layer, in plain Python, which clients import too."""
