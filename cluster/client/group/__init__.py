"""A consumer's place in its group: which queues it holds, and how far the group has come in them."""
