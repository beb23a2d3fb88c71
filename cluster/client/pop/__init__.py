"""The pop consumer: workers that share the messages of a topic and acknowledge each one."""
