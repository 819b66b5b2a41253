"""Places a peer's Write into a numpy array; the device is gateware simulated in this process.

For a board, only the transport changes: ``UartTransport("/dev/ttyUSB0")``.
"""

import numpy as np
from ddp_rnic.sim.devices.live import Peer, SimTransport
from ddp_rnic.sw_driver import CQ, PD, Device, Stream

array = np.zeros(100_000, np.uint8)
data = np.random.default_rng().integers(0, 256, 65_537, np.uint8)

with SimTransport() as transport, Device(transport).open() as context:
    with PD(context) as pd, CQ(context) as cq, Stream(pd, cq) as stream:
        with pd.register(array) as region:
            Peer(transport, stream.number).write(region.stag, region.to + 1000, data.tobytes())
            (completion,) = cq.wait(timeout=10)

assert (array[1000:66_537] == data).all() and array.sum() == data.sum()
print(f"{len(data)} octets placed by {completion}")
