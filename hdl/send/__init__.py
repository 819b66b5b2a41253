"""Sends (RFC 5041 section 5.2): turns work requests into segments and the reads of their octets."""
