"""The main job: real flights through a cluster, past the death of a broker, counted three ways."""
