"""Transactions: messages that consumers see only after their producer has committed them."""
