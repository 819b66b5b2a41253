"""Links to a device, through mapped registers or a serial port; and memory that it can write."""
