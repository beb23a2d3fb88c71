"""Sending: from a producer's request to what is stored, its confirmation, and its delay."""
