"""Draws random traffic: what peers send, and what their host does meanwhile."""
