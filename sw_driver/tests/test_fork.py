"""Tests of a process that forks with a device open: the child leaves the device to the parent."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

#: A program that opens a device, forks, lets the child do something, and then uses the device
#: again.
PROGRAM = """
import gc, io, multiprocessing, os, signal, sys, threading, time
from pathlib import Path
from ddp_rnic.sim.devices.live import Peer, SimTransport
from ddp_rnic.sw_driver import CQ, PD, Device, StateError, Stream, StreamState
from ddp_rnic.sw_driver.prm import Manager, Policy, connect
from ddp_rnic.sw_driver.prm.audit import Audit
from ddp_rnic.sw_driver.rdmap import CQ as RdmapCQ, QP
from ddp_rnic.sw_driver.transports.recorded import Recorder
from ddp_rnic.sw_driver.cm import MpaSource

folder = Path(sys.argv[1])
said = folder / "said"

def refused(call):
    try:
        call()
    except StateError as error:
        assert "after the fork" in str(error), error
    else:
        raise AssertionError("a forked child used the device")

def reap(pid):
    for _ in range(200):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert status == 0, status
            return
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    sys.exit("the child hangs")

def fork(child):
    pid = os.fork()
    if pid == 0:
        # What the child raises ends it with another status.
        child()
        sys.exit(0)
    reap(pid)

def go_on(sim, cq, pd, stream):
    octets = bytearray(5)
    with pd.register(octets) as region:
        Peer(sim, stream.number).write(region.stag, 0, b"hello")
        assert cq.wait(timeout=10)[0].mr is region and octets == b"hello"

"""

#: The child's part of each test, in a program that has every kind of object open.
CHILDREN = {
    "leaves the block": """
        pid = os.fork()
        if pid == 0:
            sys.exit(0)  # through all the blocks below
        reap(pid)
    """,
    "leaves the block with an error": """
        pid = os.fork()
        if pid == 0:
            try:
                with region:
                    raise KeyError("the child's own")
            except KeyError as error:
                assert not getattr(error, "__notes__", None)
            sys.exit(0)
        reap(pid)
    """,
    "closes all itself": """
        fork(lambda: [each.close() for each in (region, stream, cq, qp, rcq, pd, context, sim)])
    """,
    "uses it": """
        def child():
            for call in (
                lambda: pd.register(bytearray(8)), region.revoke, lambda: region.read(1),
                lambda: stream.post_recv(None), cq.poll, lambda: cq.wait(1), context.events,
                context.counters, lambda: PD(context), lambda: CQ(context), rcq.poll,
                lambda: rcq.wait(1), lambda: qp.post_recv(None), qp.data_to_send,
                lambda: sim.read(0), lambda: sim.run(10), lambda: sim.wait(1),
                lambda: Device(sim).open(),
            ):
                refused(call)
        fork(child)
    """,
    "forgets it": """
        def child():
            global sim, context, pd, cq, stream, region, rcq, qp
            del sim, context, pd, cq, stream, region, rcq, qp
            gc.collect()
        fork(child)
    """,
    "is one of multiprocessing": """
        process = multiprocessing.get_context("fork").Process(target=cq.close)
        process.start()
        process.join(10)
        assert process.exitcode == 0, process.exitcode
    """,
    "is forked while another thread holds the locks": """
        held, release = threading.Event(), threading.Event()
        def hold():
            with context.lock, sim._lock:
                held.set()
                release.wait(20)
        thread = threading.Thread(target=hold)
        thread.start()
        held.wait(10)
        try:
            pid = os.fork()
            if pid == 0:
                refused(cq.poll)
                refused(lambda: sim.read(0))
                sys.exit(0)
            reap(pid)
        finally:
            release.set()
            thread.join()
    """,
}

OPENED = """
with (
    SimTransport() as sim, Device(sim).open() as context, PD(context) as pd, CQ(context) as cq,
    Stream(pd, cq) as stream, RdmapCQ(context) as rcq,
    QP(pd, rcq, MpaSource(1440, crc=True, markers=False)) as qp,
    pd.register(bytearray(8)) as region,
):
    before = sim.cycle
{child}
    assert sim.cycle == before, "the child moved the simulated device"
    assert stream.state is StreamState.RECEIVING and not region.revoked
    go_on(sim, cq, pd, stream)
print("the parent went on")
"""


def run(folder: Path, program: str) -> None:
    # From 3.12 on, Python warns of a fork beside other threads: these tests make such forks.
    quiet = "-Wignore:This process:DeprecationWarning"
    result = subprocess.run(
        [sys.executable, quiet, "-c", PROGRAM + program, str(folder)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout == "the parent went on\n" and not result.stderr


@pytest.mark.parametrize("child", CHILDREN, ids=lambda name: name.replace(" ", "-"))
def test_a_forked_child_leaves_the_device_to_its_parent(tmp_path: Path, child: str) -> None:
    text = textwrap.indent(textwrap.dedent(CHILDREN[child]), "    ")
    run(tmp_path, OPENED.format(child=text))


def test_a_forked_child_writes_nothing_to_the_parents_recording(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
with SimTransport() as sim, Recorder(sim, said) as recorder:
    with Device(recorder).open() as context, PD(context) as pd, CQ(context) as cq:
        stream = Stream(pd, cq)
        there = said.read_bytes()
        fork(lambda: refused(lambda: recorder.read(0)))
        assert said.read_bytes() == there and there.endswith(b"\\n")
        go_on(sim, cq, pd, stream)
print("the parent went on")
""",
    )


def test_a_forked_child_of_a_managers_client_leaves_the_connection_alone(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
path = folder / "rnic.sock"
with SimTransport() as sim, Device(sim).open() as device:
    with Manager(device, path, Policy(), Audit(io.StringIO())) as manager:
        serving = threading.Thread(target=manager.serve)
        serving.start()
        try:
            with connect(path) as context, PD(context) as pd, CQ(context) as cq:
                with Stream(pd, cq) as stream, pd.register(bytearray(8)) as region:
                    pid = os.fork()
                    if pid == 0:
                        for call in (
                            cq.poll, lambda: cq.wait(1), lambda: stream.state, region.revoke,
                            lambda: pd.register(bytearray(8)), context.events,
                        ):
                            refused(call)
                        for each in (region, stream, cq, pd, context, manager):
                            each.close()
                        os._exit(0)
                    reap(pid)
                    assert path.exists(), "the child has removed the manager's socket"
                    go_on(sim, cq, pd, stream)
        finally:
            manager.stop()
            serving.join()
print("the parent went on")
""",
    )
