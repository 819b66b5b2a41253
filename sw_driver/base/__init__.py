"""Provides the base of the driver: errors, checks of values, closing, buffers."""
