"""A disk for NVMe over Fabrics on RDMA: a small target, which a Linux host uses as a drive.

Each NVMe queue is a connection. The host sends its commands. The target fetches the octets to write
by RDMA Reads, so that they arrive as Read Responses through the gateware, and puts the octets to
read into the host's memory by RDMA Writes. The layouts are those of the NVM Express Base, NVM
Command Set and RDMA Transport specifications.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

from ddp_rnic.sw_driver import WcStatus
from ddp_rnic.sw_driver.cm import ConnectError, ConnectRequest
from ddp_rnic.sw_driver.rdmap import QP, WC, Opcode, QPState

#: Octets of a command, of a completion, of the data in a command's capsule, and of a block.
COMMAND, COMPLETION, INLINE, BLOCK = 64, 16, 4096, 512
#: Commands of a queue at a time, I/O queues of a controller, and log2 of the pages in a transfer.
DEPTH, QUEUES, MDTS = 32, 2, 5
#: Octets of an Identify data structure, and of the unit of ``MDTS``; and the NVMe version, 1.3.
PAGE, VERSION = 4096, 0x10300
#: The private data of a request and of its answer. The first number is the record format, 0.
REQUEST, REPLY = struct.Struct("<HHHH24x"), struct.Struct("<HH28x")


class Status:
    """Status codes: the code, its type in the upper octet, and the bit Do Not Retry (0x4000)."""

    SUCCESS = 0x0000
    INVALID_OPCODE = 0x4001
    INVALID_FIELD = 0x4002
    INVALID_NAMESPACE = 0x400B
    LBA_OUT_OF_RANGE = 0x4080
    CONNECT_INVALID = 0x4182
    INVALID_HOST = 0x4184


class Answer(NamedTuple):
    """The outcome of a command: its status, the completion's result, and data for the host."""

    status: int = Status.SUCCESS
    result: int = 0
    data: bytes = b""


@dataclass
class Command:
    """A command in its capsule, with the descriptor of its data."""

    capsule: bytes
    buffer: bytearray = field(default_factory=bytearray)  # the octets that an RDMA Read fetches

    def __post_init__(self) -> None:
        self.opcode, self.number = self.capsule[0], self.word(2, 2)
        self.fabrics = self.opcode == 0x7F  # its type is in octet 4
        self.address, self.kind = self.word(24, 8), self.capsule[39]
        # A keyed descriptor has a length of 24 bits and the host's STag.
        self.keyed = self.kind >> 4 == 4
        self.length = self.word(32, 3 if self.keyed else 4)
        self.stag = self.word(35, 4) if self.keyed else 0

    def word(self, at: int, octets: int) -> int:
        """Returns a number of the command, which begins at octet ``at``."""
        return int.from_bytes(self.capsule[at : at + octets], "little")

    @property
    def writes(self) -> bool:
        """True if the host has data for the command."""
        return (self.capsule[4] if self.fabrics else self.opcode) & 3 == 1 and self.length > 0


class Controller:
    """A controller of the disk, for one host, with an admin queue and I/O queues."""

    def __init__(self, disk: Disk, number: int, host: bytes) -> None:
        self.disk, self.number, self.host = disk, number, host
        self.configuration = 0

    def property(self, command: Command) -> Answer:
        """Gets or sets a property, by its offset."""
        match command.capsule[4], command.word(44, 4):
            case 0x00, 0x14:
                self.configuration = command.word(48, 4)
                return Answer()
            case 0x04, 0x00:  # capabilities: NVM commands, contiguous queues, ready within 7.5 s
                return Answer(result=1 << 37 | 15 << 24 | 1 << 16 | DEPTH - 1)
            case 0x04, 0x08:  # version 1.3
                return Answer(result=VERSION)
            case 0x04, 0x14:
                return Answer(result=self.configuration)
            case 0x04, 0x1C:  # ready once it is enabled, and shut down once it is asked to
                shut = self.configuration >> 14 & 3 != 0
                return Answer(result=self.configuration & 1 | 2 * shut << 2)
        return Answer(Status.INVALID_FIELD)

    def admin(self, command: Command, _: bytes) -> Answer | None:
        """Executes a command of the admin queue; None: it is not answered now."""
        match command.opcode:
            case 0x02 if command.capsule[40] in (1, 2, 3):  # logs: errors, health, firmware
                return Answer(data=bytes(min(command.length, PAGE)))
            case 0x06:
                return self.identify(command)
            case 0x09 | 0x0A if command.capsule[40] == 0x07:  # set, or get: number of queues
                return Answer(result=(QUEUES - 1) * 0x10001)
            case 0x09 if command.capsule[40] in (0x0B, 0x0F):  # events, keep-alive timer
                return Answer()
            case 0x0C:  # asynchronous event request: there is no event
                return None
            case 0x08 | 0x18:  # abort, of a command that is over; keep alive
                return Answer(result=int(command.opcode == 0x08))
        return Answer(Status.INVALID_OPCODE)

    def identify(self, command: Command) -> Answer:
        namespace = command.word(4, 4)
        match command.capsule[40]:
            case 0x00 if namespace == 1:
                return Answer(data=self.disk.identity())
            case 0x01:
                return Answer(data=self.identity())
            case 0x02:
                return Answer(data=struct.pack("<I4092x", 1 if namespace == 0 else 0))
            case 0x03 if namespace == 1:  # a UUID
                return Answer(data=struct.pack("<BBH16s4076x", 3, 16, 0, self.disk.uuid))
            case 0x00 | 0x03:
                return Answer(Status.INVALID_NAMESPACE)
        return Answer(Status.INVALID_FIELD)

    def identity(self) -> bytes:
        """Returns the data structure Identify Controller."""
        data = bytearray(PAGE)
        fields = (
            (4, "20s40s8s", b"ddp-rnic".ljust(20), b"ddp-rnic disk".ljust(40), b"1".ljust(8)),
            (77, "<BHI", MDTS, self.number, VERSION),
            (259, "B", 3), (320, "<H", 1),  # events at a time; keep-alive in steps of 100 ms
            (512, "<BBHI", 0x66, 0x44, DEPTH, 1),  # entry sizes, commands, namespaces
            (525, "B", 1), (536, "<I", 1 << 20 | 1 << 2 | 1),  # can flush; keyed SGLs, offsets
            (768, "256s", self.disk.name.encode()),
            (1792, "<II", (COMMAND + INLINE) // 16, COMPLETION // 16), (1803, "B", 1),
        )  # fmt: skip
        for at, layout, *values in fields:
            struct.pack_into(layout, data, at, *values)
        return bytes(data)


class Disk:
    """A disk in memory, of ``size`` octets; ``name`` is its NVMe Qualified Name."""

    def __init__(self, size: int, name: str) -> None:
        if size < BLOCK or size % BLOCK:
            raise ValueError(f"the disk's size must be a multiple of {BLOCK} octets, not {size}")
        self.memory, self.name = bytearray(size), name
        self.uuid = b"ddp-rnic" + size.to_bytes(8, "big")
        self.controllers: dict[int, Controller] = {}

    def identity(self) -> bytes:
        """Returns the Identify Namespace data structure: one format, of 512 octets a block."""
        blocks = len(self.memory) // BLOCK
        head = struct.pack("<QQQ", blocks, blocks, blocks)
        return struct.pack(f"<24s104xHBB{PAGE - 132}x", head, 0, BLOCK.bit_length() - 1, 0)

    def connect(self, command: Command, data: bytes) -> tuple[Controller | None, Answer]:
        """Connects a queue to its controller. An admin queue gets a new one."""
        name = data[256:512].rstrip(b"\0").decode(errors="replace")
        number, host = int.from_bytes(data[16:18], "little"), data[:16] + data[512:768]
        if command.capsule[4] == 0x01 and len(data) == 1024 and name == self.name:
            if command.word(42, 2) == 0:
                number = next(each for each in count(1) if each not in self.controllers)
                self.controllers[number] = Controller(self, number, host)
            if (controller := self.controllers.get(number)) is not None:
                if controller.host != host:
                    return None, Answer(Status.INVALID_HOST)
                return controller, Answer(result=number)
        return None, Answer(Status.CONNECT_INVALID)

    def transfer(self, command: Command, data: bytes) -> Answer:
        """Executes a command of an I/O queue."""
        if command.word(4, 4) != 1:
            return Answer(Status.INVALID_NAMESPACE)
        if command.opcode not in (0x01, 0x02):
            # A flush has no work: each write is in memory before its completion.
            return Answer(Status.INVALID_OPCODE if command.opcode else Status.SUCCESS)
        start, length = command.word(40, 8) * BLOCK, (command.word(48, 2) + 1) * BLOCK
        if start + length > len(self.memory):
            return Answer(Status.LBA_OUT_OF_RANGE)
        if command.length != length or len(data) != (length if command.writes else 0):
            return Answer(Status.INVALID_FIELD)
        if command.opcode == 0x02:
            return Answer(data=bytes(self.memory[start : start + length]))
        self.memory[start : start + length] = data
        return Answer()


class Queue:
    """A queue of commands on a connection.

    The host's ``private_data`` names it. ValueError: the disk has no such queue.
    """

    def __init__(self, disk: Disk, private_data: bytes) -> None:
        if len(private_data) < REQUEST.size:
            raise ValueError(f"a request has {REQUEST.size} octets, not {len(private_data)}")
        form, self.number, _, size = REQUEST.unpack_from(private_data)
        if form or size > DEPTH or self.number > QUEUES:
            raise ValueError(f"queue {self.number} of {size} entries, format {form}")
        self.disk = disk
        self.controller: Controller | None = None
        self._head = self.commands = self.octets = 0  # the last two count, for who wants to know

    def open(self, qp: QP) -> None:
        """Posts the receives, before the host can send."""
        self.qp = qp
        for _ in range(DEPTH + 1):
            buffer = bytearray(COMMAND + INLINE)
            qp.post_recv(buffer, wr_id=buffer)

    def take(self, completion: WC) -> None:
        """Takes a completion of the queue pair: a command came, or its data. Nothing is done any
        more for a host that has closed the connection meanwhile.
        """
        if completion.status is not WcStatus.SUCCESS or self.qp.state is not QPState.RTS:
            return
        if completion.opcode is Opcode.RECV:
            buffer = completion.wr_id
            capsule = bytes(buffer[: completion.byte_len])
            self.qp.post_recv(buffer, wr_id=buffer)
            if len(capsule) >= COMMAND:
                self._begin(Command(capsule))
        elif completion.opcode is Opcode.RDMA_READ:
            self._execute(completion.wr_id, bytes(completion.wr_id.buffer))

    def _begin(self, command: Command) -> None:
        """Fetches the data of a command, if it has some, and executes it."""
        if not command.writes:
            self._execute(command, b"")
        elif not command.keyed:  # the data lies in the capsule
            self._execute(command, command.capsule[COMMAND + command.address :][: command.length])
        elif command.length > PAGE << MDTS:
            self._answer(command, Answer(Status.INVALID_FIELD))
        else:
            command.buffer = bytearray(command.length)
            self.qp.post_send(
                Opcode.RDMA_READ, command.buffer, wr_id=command,
                stag=command.stag, to=command.address,
            )  # fmt: skip

    def _execute(self, command: Command, data: bytes) -> None:
        answer: Answer | None = Answer(Status.INVALID_OPCODE)
        if command.fabrics:
            answer = self._fabrics(command, data)
        elif self.controller is not None:
            execute = self.disk.transfer if self.number else self.controller.admin
            answer = execute(command, data)
        if answer is not None:
            self._answer(command, answer)

    def _fabrics(self, command: Command, data: bytes) -> Answer:
        if self.controller is not None:
            return self.controller.property(command)
        self.controller, answer = self.disk.connect(command, data)
        return answer

    def _answer(self, command: Command, answer: Answer) -> None:
        """Writes data into the host's memory, and sends the command's completion."""
        if answer.data and not command.keyed:
            answer = Answer(Status.INVALID_FIELD)
        elif answer.data:
            data = answer.data[: command.length]
            self.qp.post_send(Opcode.RDMA_WRITE, data, stag=command.stag, to=command.address)
        self._head = (self._head + 1) % DEPTH
        self.commands += 1
        self.octets += len(command.buffer or answer.data)
        end = self._head, 0, command.number, answer.status << 1
        entry = struct.pack("<QHHHH", answer.result, *end)
        if command.keyed and command.kind & 15 == 15:  # the host wants its STag invalidated
            self.qp.post_send(Opcode.SEND_WITH_INV, entry, stag=command.stag)
        else:
            self.qp.post_send(Opcode.SEND, entry)


async def serve_queue(disk: Disk, request: ConnectRequest, **settings: Any) -> Queue | None:
    """Serves one queue of a host until its connection ends; ``settings`` are those of accept."""
    try:
        queue = Queue(disk, request.private_data)
    except ValueError:
        await request.reject(struct.pack("<HH", 0, 0x01))  # invalid private data
        return None
    with suppress(ConnectError):  # the host may go at any time
        endpoint = await request.accept(REPLY.pack(0, DEPTH), prepare=queue.open, **settings)
        async with endpoint:
            completions = await endpoint.wait()
            while completions[-1].opcode is not Opcode.HALF_CLOSED:
                for completion in completions:
                    queue.take(completion)
                completions = await endpoint.wait()
    if queue.number == 0 and queue.controller is not None:
        del disk.controllers[queue.controller.number]
    return queue
