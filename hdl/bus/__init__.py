"""Declares AXI4 and AXI4-Lite signatures, and implements an address decoder and a memory."""
