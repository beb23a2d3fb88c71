"""What every file needs of the disk: durable names, the page cache, its use, and work that waits for it."""
