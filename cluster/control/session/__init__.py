"""Sessions: starting Ray, connecting to it and disconnecting."""
