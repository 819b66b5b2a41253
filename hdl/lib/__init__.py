"""Provides generic blocks that know nothing of RDMA: streams, tables, delays, CRC32C."""
