"""Transactional messages: consumers receive them only after the producer has committed them."""
