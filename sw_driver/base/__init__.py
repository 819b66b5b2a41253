"""The parts that the whole driver uses: errors, checks of values, closing, buffers."""
