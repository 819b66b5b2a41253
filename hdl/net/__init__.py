"""Parses Ethernet frames, IP, UDP and TCP headers, and looks up SCTP associations."""
