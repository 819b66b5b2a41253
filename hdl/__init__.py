"""Implements the RNIC in Amaranth."""
