"""Bounds RDMA Reads over MPA, and answers Read Requests (RFC 5040)."""
