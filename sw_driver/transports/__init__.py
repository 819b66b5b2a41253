"""Links to a device: registers mapped into memory, a serial port; and memory it writes."""
