"""Receives and sends DDP over SCTP (RFC 9260, RFC 5043), in Ethernet frames; keeps the sessions."""
