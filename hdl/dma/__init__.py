"""Places octets in host memory, and reads octets to send: pages, byte rotation, AXI4 bursts."""
