"""The driver: what is wanted is compared with what runs, and the difference is done, actor by actor."""
