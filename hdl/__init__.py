"""Implements the RNIC's receive datapath in Amaranth."""
