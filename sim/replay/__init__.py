"""Turns traffic into operations and their required results: plan, regions, expectation."""
