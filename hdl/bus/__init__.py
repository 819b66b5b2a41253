"""Buses: AXI4 and AXI4-Lite signatures, what leads to a window, a memory."""
