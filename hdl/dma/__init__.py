"""Places octets in host memory: page cutting, byte rotation, and the AXI4 write engine."""
