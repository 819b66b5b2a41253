"""Bus signatures: AXI4, AXI4-Lite, AXI4-Stream."""
