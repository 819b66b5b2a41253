"""Two programs share a device through the manager. Here all three are threads of one process.

``rnic prm DEVICE --socket PATH`` runs such a manager. Each program opens the device by
``connect(PATH)``, and knows nothing of the other program.
"""

import sys
import tempfile
import threading
from pathlib import Path

from ddp_rnic.sim.devices.live import Peer, SimTransport
from ddp_rnic.sw_driver import CQ, PD, Device, Stream
from ddp_rnic.sw_driver.prm import Manager, Policy, connect
from ddp_rnic.sw_driver.prm.audit import Audit


def program(name: str, path: Path, sim: SimTransport, results: dict[str, bytes]) -> None:
    """Receives a peer's Write in memory of the program's own."""
    with connect(path) as context:
        with PD(context) as pd, CQ(context) as cq, Stream(pd, cq) as stream:
            # A buffer from allocate() is shared with the manager; any other buffer is copied.
            memory = context.allocate(100)
            with pd.register(memory) as region:
                Peer(sim, stream.number).write(region.stag, 0, f"for {name}".encode())
                cq.wait(timeout=10)
                results[name] = region.read(len(name) + 4)


with tempfile.TemporaryDirectory() as folder, SimTransport() as sim, Device(sim).open() as device:
    path, results = Path(folder) / "rnic.sock", dict[str, bytes]()
    with Manager(device, path, Policy(per_user=2), Audit(sys.stderr)) as manager:
        serving = threading.Thread(target=manager.serve)
        serving.start()
        names = ("first", "second")
        programs = [threading.Thread(target=program, args=(n, path, sim, results)) for n in names]
        for each in programs:
            each.start()
        for each in programs:
            each.join()
        manager.stop()
        serving.join()

assert results == {name: f"for {name}".encode() for name in names}
print(f"{len(results)} programs shared a device")
