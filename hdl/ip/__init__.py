"""Parses the Ethernet and IP headers of a frame, for the LLPs that take frames."""
