"""Captures, workloads, engines that run the gateware, comparison, and the ``rnic`` commands."""
