"""Users and policies: which user signed a request, and which resources the user may access."""
