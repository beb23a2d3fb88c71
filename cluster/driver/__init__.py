"""The driver: compares a topology with the running actors and applies the difference."""
