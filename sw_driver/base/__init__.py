"""What every part of the driver uses: errors, checks of values, closing, buffers."""
