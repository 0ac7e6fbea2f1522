"""Weighted sums of source vectors: the primitive under every stream."""
