"""Access control: users, policies, and the chain steps that authenticate and authorize requests."""
