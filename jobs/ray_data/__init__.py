"""Ray Data access to topics: a `Datasource` that reads a topic, and a `Datasink` that writes to one."""
