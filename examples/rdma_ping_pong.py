"""A client and a server exchange Sends, an RDMA Write and an RDMA Read over TCP.

Both receive through one simulated device.
"""

import asyncio

from ddp_rnic.sim.devices.live import SimTransport
from ddp_rnic.sw_driver import PD, Access, Device
from ddp_rnic.sw_driver.cm import Listener, connect
from ddp_rnic.sw_driver.rdmap import Opcode

ROUNDS = 3
RIGHTS = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ


async def serve(listener: Listener, pd: PD, memory: bytearray) -> None:
    """Opens memory to the client, and answers each ping."""
    ping = bytearray(4)
    request = await listener.request()
    with pd.register(memory, RIGHTS) as region:
        stag = region.stag.to_bytes(4, "big")
        async with await request.accept(stag, prepare=lambda qp: qp.post_recv(ping)) as server:
            for turn in range(ROUNDS):
                while ping != b"ping":
                    await server.wait(timeout=10)
                ping[:] = bytes(4)
                if turn + 1 < ROUNDS:
                    server.qp.post_recv(ping)
                server.qp.post_send(Opcode.SEND, b"pong")
            await server.disconnected(timeout=10)


async def main(pd: PD) -> None:
    memory, sink = bytearray(5000), bytearray(5000)
    async with Listener(pd) as listener:
        task = asyncio.create_task(serve(listener, pd, memory))
        async with await connect(pd, "127.0.0.1", listener.port) as client:
            stag = int.from_bytes(client.private_data, "big")
            for turn in range(ROUNDS):
                message, pong = bytes([turn + 1]) * 5000, bytearray(4)
                client.qp.post_recv(pong, wr_id="pong")
                client.qp.post_send(Opcode.RDMA_WRITE, message, wr_id="write", stag=stag)
                client.qp.post_send(Opcode.RDMA_READ, sink, wr_id="read", stag=stag)
                client.qp.post_send(Opcode.SEND, b"ping", wr_id="sent", solicited=True)
                done: list[object] = []
                while "pong" not in done:
                    done += [completion.wr_id for completion in await client.wait(timeout=10)]
                assert memory == sink == message and pong == b"pong"
                print(turn, *done)
        await task
    print(f"{ROUNDS} rounds of Write, Read and Send")


with SimTransport() as sim, Device(sim).open() as context, PD(context) as pd:
    asyncio.run(main(pd))
