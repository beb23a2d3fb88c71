"""Features of a broker; `built_in` lists them in order."""
