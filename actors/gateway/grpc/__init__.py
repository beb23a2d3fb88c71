"""gRPC over HTTP/2: the part of the protocol that a server of unary and streaming calls needs."""
