"""Commands on a store on this machine's disk."""
