"""Programs that RDMA peers know, on the simulated gateware: rping, perftest, a sink and an echo.

What a peer sends is received by the gateware and, in lock step, by the golden model.
"""
