"""Receives untagged messages in posted buffers, in the order of the posts.

The buffers are the rows of a numpy array that is registered once, without remote rights.
"""

import numpy as np
from ddp_rnic.sim.devices.live import Peer, SimTransport
from ddp_rnic.sw_driver import CQ, PD, Access, Device, Stream

rows = np.zeros((8, 2048), np.uint8)
messages = [bytes([n + 1]) * (100 * n) for n in range(20)]

with SimTransport() as transport, Device(transport).open() as context:
    with PD(context) as pd, CQ(context) as cq, Stream(pd, cq, queues=[0]) as stream:
        # A region with posted buffers cannot be revoked before its stream is closed.
        region = pd.register(rows, Access.LOCAL_WRITE)
        for row in range(len(rows)):
            stream.post_recv(region, wr_id=row, offset=2048 * row, length=2048)
        peer = Peer(transport, stream.number)
        received: list[bytes] = []
        for message in messages[: len(rows)]:
            peer.send(message)
        while len(received) < len(messages):
            for completion in cq.wait(timeout=10):
                row = completion.wr_id
                received.append(rows[row, : completion.byte_len].tobytes())
                stream.post_recv(region, wr_id=row, offset=2048 * row, length=2048)
                # A peer may send as many messages as it knows buffers to be posted.
                for message in messages[len(received) + len(rows) - 1 :][:1]:
                    peer.send(message)

assert received == messages
print(f"{len(received)} messages received")
