"""Receives and sends MPA (RFC 5044): finds the DDP Segments in FPDUs, and makes FPDUs of them."""
