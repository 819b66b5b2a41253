"""Receives SCTP (RFC 9260, RFC 5043): turns frames into DDP Segments, and keeps their sessions."""
