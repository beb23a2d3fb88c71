"""A broker's config tables (topics, groups, offsets, request modes) and the files that hold them."""
