"""MPA (RFC 5044), receive: from packets of FPDUs to DDP Segments and their verdicts."""
