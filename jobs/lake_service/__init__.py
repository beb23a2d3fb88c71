"""The process of a lake: an actor that runs the rounds of `jobs.lake` again and again."""
