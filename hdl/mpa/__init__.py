"""Receives MPA (RFC 5044): turns packets of FPDUs into DDP Segments and their verdicts."""
