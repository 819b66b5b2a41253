"""SCTP (RFC 9260, RFC 5043), receive: from frames to DDP Segments, sessions and their order."""
