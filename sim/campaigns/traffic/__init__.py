"""Draws random traffic: the packets of peers, and the calls of their host."""
