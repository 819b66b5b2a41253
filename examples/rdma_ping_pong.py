"""Sends, RDMA Writes and RDMA Reads between two endpoints, which receive through one gateware.

Each endpoint gives its octets to a TCP connection; this program carries them to the other one.
"""

from ddp_rnic.sim.devices.live import SimTransport
from ddp_rnic.sim.devices.rdma import Connection
from ddp_rnic.sw_driver import PD, Access, Device
from ddp_rnic.sw_driver.rdmap import CQ, Opcode

ROUNDS = 3
RIGHTS = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ

with SimTransport() as sim, Device(sim).open() as context, PD(context) as pd, CQ(context) as cq:
    client, server = Connection(sim.send, pd, cq), Connection(sim.send, pd, cq)

    def carry() -> None:
        """Carries the octets that both want to send, as TCP would."""
        server.receive(client.data_to_send())
        client.receive(server.data_to_send())

    memory, sink = bytearray(5000), bytearray(5000)
    with pd.register(memory, RIGHTS) as region:
        client.connect()
        carry()
        server.accept(region.stag.to_bytes(4, "big"))
        carry()
        assert client.reply is not None
        stag = int.from_bytes(client.reply.private_data, "big")
        for turn in range(ROUNDS):
            message, ping, pong = bytes([turn + 1]) * 5000, bytearray(4), bytearray(4)
            server.qp.post_recv(ping, wr_id="ping")
            client.qp.post_recv(pong, wr_id="pong")
            client.qp.post_send(Opcode.RDMA_WRITE, message, wr_id="write", stag=stag)
            client.qp.post_send(Opcode.RDMA_READ, sink, wr_id="read", stag=stag)
            client.qp.post_send(Opcode.SEND, b"ping", wr_id="sent", solicited=True)
            done = []
            while "pong" not in done:
                carry()
                for completion in cq.poll():
                    done.append(completion.wr_id)
                    if completion.wr_id == "ping":
                        server.qp.post_send(Opcode.SEND, b"pong")
            assert memory == sink == message and (ping, pong) == (b"ping", b"pong")
            print(turn, *done)
print(f"{ROUNDS} rounds of Write, Read and Send")
