"""Synthesis, place and route: netlists, their passes, areas and clocks."""
