"""Hostile clients of the manager: whatever they send, other clients lose nothing.

``PRM_FUZZ=100000`` in the environment sets the number of messages; ``PRM_SEED`` repeats a run.
"""

from __future__ import annotations

import os
import random
import secrets
import select
import socket
import struct
from collections import Counter
from contextlib import suppress
from pathlib import Path

from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.sim.devices.live import Peer
from ddp_rnic.sw_driver import CQ, PD, Stream, StreamState
from ddp_rnic.sw_driver.prm import Limits, Policy, connect, protocol
from ddp_rnic.sw_driver.prm.protocol import LAYOUTS, Decoder, Kind
from ddp_rnic.sw_driver.tests.managed import Managed, managed, until
from ddp_rnic.sw_driver.tests.test_prm import memfd

MESSAGES = int(os.environ.get("PRM_FUZZ", "8000"))
SEED = int(os.environ.get("PRM_SEED", "0")) or secrets.randbits(32)
#: The kinds of valid requests, the likely ones more often.
KINDS = [*LAYOUTS, *[Kind.MEMORY, Kind.DOMAIN, Kind.QUEUE, Kind.STREAM, Kind.POST] * 2]
KINDS += [Kind.REGION] * 4
#: The fields that take the handle in an answer, by the kind of the request.
MADE = {
    Kind.MEMORY: ["memory"],
    Kind.DOMAIN: ["domain"],
    Kind.QUEUE: ["queue"],
    Kind.DIRECT_QUEUE: ["queue"] * 4,
    Kind.STREAM: ["stream"],
    Kind.REGION: ["region"],
}

#: Values of fields that are likely to be accepted.
LIKELY = {
    "object": [*protocol.Object, *[protocol.Object.REGION] * 3],
    "qn": [0, 1, 2, 3],
    "queues": [15],
    "access": [1, 2, 3, 7],
    "offset": [0],
    "length": [1, 8, 4096],
    "cqe": [1, 20],
    "size": [1, 2, 3],
    "mulpdu": [1, 100, 1440],
    "doorbell": [0, 1],
}


class Hostile:
    """A client that obeys no rule."""

    def __init__(self, prm: Managed, rng: random.Random) -> None:
        self._prm, self._rng = prm, rng
        self._socket: socket.socket | None = None
        self.answered: Counter[Kind] = Counter()
        self.sent = self.connected = 0
        self.secrets: list[bytes] = []

    def _connect(self) -> socket.socket:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.connect(str(self._prm.path))
            self._socket.setblocking(False)
            self._asked: dict[int, Kind] = {}
            self._decoder, self._number = Decoder(protocol.LONGEST_ANSWER), 0
            self._handles: dict[str, list[int]] = {}
            self.connected += 1
            if self._rng.random() < 0.95:
                # Without a free place the manager has closed the connection already.
                with suppress(OSError):
                    self._socket.send(protocol.encode(0xFFFFFFFF, protocol.Hello()))
        return self._socket

    def message(self) -> None:
        """Sends a message of some kind, and checks the answers that are present."""
        link, rng = self._connect(), self._rng
        octets, descriptors = self._request()
        way = rng.random()
        if way < 0.01:
            at = rng.randrange(len(octets))
            octets = octets[:at] + bytes([octets[at] ^ 1 << rng.randrange(8)]) + octets[at + 1 :]
        elif way < 0.015:
            octets = rng.randbytes(rng.randrange(1, 200))
        elif way < 0.02:
            octets = octets[: rng.randrange(1, len(octets) + 1)]
        elif way < 0.025:
            length = rng.choice([0, 4, 5, 65, 1 << 16, (1 << 32) - 1])
            octets = struct.pack("<I", length) + octets[4:]
        elif way < 0.03:
            descriptors += [os.open("/dev/null", os.O_RDWR) for _ in range(rng.randrange(1, 4))]
        elif way < 0.035:
            octets = octets * 20
        try:
            socket.send_fds(link, [octets], descriptors)
            self.sent += 1
        except BlockingIOError:
            pass
        except OSError:
            self.leave()
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._read()
        if rng.random() < 0.003:
            self.leave()

    def _request(self) -> tuple[bytes, list[int]]:
        rng = self._rng
        kind = rng.choice(KINDS)
        self._number += 1
        if self._handles.get("stream") and rng.random() < 0.4:
            kind = rng.choice(
                [Kind.REGION, Kind.SYNC, Kind.POST, Kind.POST, Kind.CLOSE]
                + [Kind.SEND_RING, Kind.BELL, Kind.SENT, Kind.DIRECT_QUEUE]
            )
        if kind is Kind.HELLO and rng.random() < 0.98:
            kind = Kind.EVENTS
        self._asked[self._number] = kind
        make, layout = LAYOUTS[kind]
        codes = layout.format.strip("<").replace("8s", "s")
        fields = zip(make._fields, codes, strict=True)
        body = layout.pack(*(self._field(name, code) for name, code in fields))
        octets = protocol.frame(kind, self._number, body)
        if kind is not Kind.MEMORY:
            return octets, []
        sizes = [0, 1, 4096, 8192, 100_000]
        return octets, [memfd(rng.choice(sizes)) if rng.random() < 0.9 else memfd(10, 0)]

    def _field(self, name: str, code: str) -> int | bytes | bool:
        rng = self._rng
        if code == "s":
            return rng.choice([protocol.MAGIC, b"\0" * 8])
        if code == "?":
            return rng.random() < 0.5
        if rng.random() < 0.8 and (known := self._handles.get(name) or LIKELY.get(name)):
            return rng.choice(known)
        bits = 8 * struct.calcsize(f"<{code}")
        if rng.random() < 0.08:
            return rng.choice([rng.getrandbits(bits), (1 << bits) - 1, 1 << bits - 1])
        return rng.randrange(0, min(12, 1 << bits))

    def _read(self) -> None:
        """Takes the answers that are present; waits for one where many are missing."""
        if self._socket is None:
            return
        behind = len(self._asked) >= 4
        if not select.select([self._socket], [], [], 0.02 if behind else 0)[0]:
            if behind:  # perhaps this client sent half a message
                self._asked.clear()
            return
        try:
            octets = self._socket.recv(1 << 16)
        except OSError:
            octets = b""
        for secret in self.secrets:
            assert secret not in octets, "another client's Steering Tag was sent"
        self._decoder.feed(octets)
        while (taken := self._decoder.take()) is not None:
            self._answer(*taken)
        if not octets:
            self.leave()

    def _answer(self, kind: int, number: int, body: bytes) -> None:
        asked = self._asked.pop(number, None)
        if asked is None or kind == Kind.ERROR:
            return
        self.answered[asked] += 1
        if asked in MADE and len(body) >= protocol.HANDLE.size:
            (handle,) = protocol.HANDLE.unpack_from(body)
            for name in (*MADE[asked], "handle"):
                self._handles.setdefault(name, []).append(handle)
            if len(body) > protocol.HANDLE.size:
                # A doorbell of this stream or this queue, with any index.
                value = body[protocol.HANDLE.size] << 16 | self._rng.randrange(12)
                self._handles.setdefault("value", []).append(value)

    def leave(self) -> None:
        """Without a word."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None


def missing(hostile: list[Hostile]) -> set[Kind]:
    """Returns the kinds of requests of which none was done, whose code was perhaps not reached."""
    done = {kind for each in hostile for kind in each.answered}
    return set(Kind) - {Kind.HELLO, Kind.ANSWER, Kind.ERROR, Kind.PASSED} - done


def test_whatever_clients_send_the_manager_serves_the_others(tmp_path: Path) -> None:
    print(f"PRM_FUZZ={MESSAGES} PRM_SEED={SEED}")
    rng = random.Random(SEED)
    policy = Policy(
        clients=8, per_user=8, limits=Limits(memory=1 << 20, octets=1 << 20, completions=100)
    )
    sends = RnicConfig(transmit=True, responder=True)
    with managed(tmp_path, policy, config=sends) as prm, connect(prm.path) as context:
        with PD(context) as pd, CQ(context, 50) as cq, Stream(pd, cq) as stream:
            region = pd.register(bytearray(b"mine" * 1000))
            hostile = [Hostile(prm, rng) for _ in range(5)]
            for each in hostile:
                each.secrets = [region.stag.to_bytes(4, order) for order in ("little", "big")] + [
                    str(region.stag).encode()
                ]
            before, written = len(os.listdir("/proc/self/fd")), 0
            peer = Peer(prm.sim, stream.number)
            while (sent := sum(each.sent for each in hostile)) < MESSAGES or (
                missing(hostile) and sent < MESSAGES + 50_000
            ):
                rng.choice(hostile).message()
                if sent >= written * (MESSAGES // 20) and written < 20:
                    peer.write(region.stag, 4 * written, b"PEER")
                    written += 1
                    assert cq.wait(20)[0].mr is region
            assert written == 20 and stream.state is StreamState.RECEIVING
            assert region.read(4000) == b"PEER" * 20 + b"mine" * 980
            for each in hostile:
                each.leave()
            until(lambda: len(prm.manager._seats) == policy.clients - 1, "all but one client gone")
            assert len(os.listdir("/proc/self/fd")) <= before
            assert len(prm.context.streams) == 1 and len(prm.context.regions) == 1
    answered = sum((each.answered for each in hostile), Counter())
    print(
        f"{sent} messages on {sum(each.connected for each in hostile)} connections,"
        f" {sum(answered.values())} done: {dict((k.name, n) for k, n in answered.items())}"
    )
    assert not missing(hostile)
    assert "Traceback" not in prm.log.getvalue() and str(region.length) in prm.log.getvalue()
