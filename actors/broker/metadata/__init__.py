"""A broker's tables: topics and their attributes, and the files that keep them."""
