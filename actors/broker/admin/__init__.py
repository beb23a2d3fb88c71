"""What administrators and their tools ask of a broker: definitions, progress, clients, cleaning, figures."""
