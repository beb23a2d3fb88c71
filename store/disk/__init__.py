"""Disk access for all kinds of store files: durable writes, page cache, disk usage, removal of files."""
