"""The broker's loop: what it does once per turn, and the threads for what must not be done on it."""
