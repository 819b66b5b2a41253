"""Declares the register map, once for decoder, driver and documents.

All registers are 32 bits wide, at octet addresses, little-endian on the bus. The host reaches the
tables and queues through groups of registers, and :mod:`~.commands` has the sequence of accesses
for each purpose:

* STag table: write the ``STAG_*`` registers, then ``STAG_COMMIT``, which replaces the entry named
  by ``STAG_INDEX`` as a whole. ``REVOKE_STAG`` invalidates the entry; once ``STATUS.revoking``
  reads 0, the device writes and reads not one octet more of the region, and the entry may be
  written again.
* Page table: write the ``PAGE_*`` registers, then ``PAGE_COMMIT``, which writes one slot.
* Stream table: write the ``STREAM_*`` registers, then ``STREAM_COMMIT``, which writes the entry and
  clears the stream's error state. If the stream's error event was not read, the stream stays in
  error; ``STATUS.uncleared`` shows that once ``STATUS.clearing`` reads 0. The host reads the event
  and writes ``STREAM_COMMIT`` again. ``REVOKE_STREAM`` disables the stream and revokes the STags
  bound to it; once ``STATUS.revoking`` reads 0, no message or error of the stream is on its way to
  its queue or to the ``EVENT_*`` registers. A stream that has received segments is set up anew only
  after that: otherwise old messages are reported as those of the new stream.
* Untagged queues: write the ``QUEUE_*`` registers, then ``QUEUE_OPEN``. For each buffer write the
  ``BUFFER_*`` registers and ``QUEUE_MSN``, then the number of a free slot to ``BUFFER_POST``.
* Error events: while ``STATUS.event`` is set, the ``EVENT_*`` registers show the oldest event. A
  write to ``EVENT_POP`` removes it. The device keeps one event for each stream, so none is lost
  however long the host does not read them, and no stream waits for it.
* Completion queues: the device writes completions to rings in host memory. Write ``CQ_INDEX`` and
  the registers of the ring, then ``CQ_COMMIT``, which restarts the queue; once
  ``CQ_STATE.restarting`` reads 0, the device writes to the new ring, and to the old one no more.
  After the host has taken completions, it writes ``CQ_DOORBELL``, which needs no other register.
* Doorbell pages: 16 pages of 4 KiB follow the registers, see :func:`doorbell`. A client that can
  write nothing but a page rings the streams and the queues of that page, and reaches nothing else:
  ``SEND_RING_SIZE.page`` and ``CQ_ENABLE.page`` name the page of a stream and of a queue, and 0
  stands for none. In a page, ``SEND_DOORBELL`` and ``CQ_DOORBELL`` have the offsets and the fields
  that they have among the registers. A write of all four octets to one of them rings, if the page
  is that of the stream or queue. Every other write to a page has no effect, and is counted in
  ``DOORBELLS_IGNORED`` and, for its page alone, in ``PAGE_IGNORED``; every read of a page returns
  0. A page answers each access with OKAY, so that no client causes an error on the bus. To take a
  page back from a stream that may still send, write ``SEND_PAGE_COMMIT``.

A device that only sends has ``CAP_BUFFER``, ``CAP_QUEUE``, ``CAP_BUFFERS``, ``CAP_OWNER`` and
``CAP_WINDOW`` 0. It lacks the registers for received segments: those of untagged queues, error
events, associations, sessions and RDMA Reads, ``STREAM_CQ``, and the counters of segments and
frames. A stream has to be enabled there too before it sends, and the STag table is the same.

The registers from ``ASSOC_SRC0`` to ``CHUNKS_REFUSED`` exist only with SCTP; the ``CAP_*``
registers before them are 0 without it:

* Association table: write the ``ASSOC_*`` registers, then ``ASSOC_COMMIT``, which replaces the
  entry at ``ASSOC_SLOT`` as a whole. :func:`~.net.insert` computes that slot.
* Sessions: before the host sends a session control message, it writes ``SESSION_STREAM``,
  ``SESSION_FUNCTION`` and, for some functions, ``SESSION_TSN``, then ``SESSION_COMMAND``.
  ``SESSION_ANSWER`` shows whether the device accepted the command, and the session's state.

The registers from ``SEND_STREAM`` on exist only in a device that sends, see ``CAP_SENDS``:

* Sending half of a stream: write ``SEND_STREAM``, ``SEND_FLAGS``, ``SEND_SEQUENCE`` and
  ``SEND_AFTER``, then ``SEND_COMMIT``; write the ``SEND_RING_*`` registers, then
  ``SEND_RING_COMMIT``. Work requests are entries of that ring. The host writes them to memory, and
  then ``SEND_DOORBELL``, which needs no other register. For each untagged queue write ``SEND_QN``
  and ``SEND_MSN``, then ``SEND_MSN_COMMIT``. Write ``SEND_MULPDU``, then ``SEND_MULPDU_COMMIT``, at
  any time: the stream's next segments have it. A stream that is ``limited`` sends up to
  ``SEND_LIMIT``, which the host raises with ``SEND_LIMIT_COMMIT`` as its LLP has room. The stream
  itself has to be enabled, see ``STREAM_FLAGS``; to write ``STREAM_COMMIT`` while it sends may
  close its sending half.

* Repeats: if the LLP keeps no copy of what it sends, its owner opens the ring with ``repeats``, and
  keeps the record (:data:`~.send.RECORD`) of each FPDU until the peer has acknowledged it. To have
  the FPDU sent again, write ``SEND_STREAM`` and the ``REPEAT`` registers, then ``REPEAT_COMMIT``.
  The device reads the entries of its message, checks its pieces anew, and the same FPDU leaves,
  with ``repeat`` in its record; if an STag does not allow it any more, the half closes. Once a
  message is acknowledged, write ``SEND_RELEASED``, which needs no other register: the message ends.
  Until then its entries and its octets have to stay. An FPDU that is on its way again needs them,
  too: its message is released after the FPDU has left. ``SEND_STATE.repeating`` reads 1 while there
  is one of the stream.

* Reads over MPA: after ``STREAM_COMMIT`` write ``SEND_STREAM`` and ``READ_ORD``, then
  ``READ_COMMIT``. A READ takes one of as many slots when its Read Request is cut, and waits in the
  ring while none is free, as ``SEND_STATE.waits`` shows; the slot is free when the Read Response
  was delivered. A message with the flag FENCE waits until all slots are free. Messages of a stream
  that was disabled wait for no Read any more, and fail. Every segment of a response has to be the
  next one of the oldest Read, with its sink's STag and TO, and the last one has to end it.
  Otherwise nothing of it is placed and the stream is in error, with an ``EVENT_CODE`` of RDMAP.
  ``STREAM_COMMIT`` clears the slots.

* Credit over SCTP: a chunk of a stream that is ``limited`` leaves only if it fits in three limits:
  ``SEND_LIMIT``, a number of chunks of its session; and those of its association, the TSN in
  ``PATH_LIMIT_TSN`` and the octets in ``PATH_LIMIT_OCTETS``. The host writes these two after
  ``PATH_COMMIT``, before it opens a stream that is limited, and raises them with
  ``PATH_LIMIT_COMMIT`` as the peer acknowledges chunks. Streams that lack credit of their
  association wait in a queue, see ``SEND_STATE.waits``, and take it in turn; the streams of other
  associations do not wait for them. A segment that does not leave takes no credit. To close the
  ring of a stream that waits, write ``SEND_DOORBELL`` after ``SEND_RING_COMMIT``: the next stream
  of the queue then has its turn.

The registers from ``RESPONSE_LO`` to ``RESPONSE_SEQUENCE`` exist only in a device that answers RDMA
Reads:

* Post a buffer of 28 octets on queue 1 of the stream for each request that the peer may have
  outstanding. The lower bits of an MSN are the number of its slot, whose first octets are its
  buffer; the sum of ``RESPONSE_BUFFER`` and that number is the buffer's place in the buffer table.
  Then write the ``RESPONSE_*`` registers and ``RESPONSE_COMMIT``. The device answers each request
  from its slot, and then posts the next buffer itself. A message of queue 1 that is no Read Request
  is completed like any other, and so are all later messages of the queue: the device answers none
  of them. A stream that repeats needs at least twice as many slots as ``ird``: a request then stays
  in its slot until the peer must have received the response.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from . import stag
from .config import RnicConfig

ID = 0x52_4E_49_43  #: "RNIC"
VERSION = 0x0005_0001  #: major in the upper half, minor in the lower
#: Doorbell pages, with the numbers from 1 on. Page 0 has the registers.
PAGES = 16
PAGE_SIZE = 4096  #: octets of a page
PAGE_BITS = 5  #: of a page's number
ADDRESS_BITS = 17
#: The registers of a doorbell page, where they are in page 0. Only a device that sends has the
#: first.
DOORBELLS = ("SEND_DOORBELL", "CQ_DOORBELL")
_SENDING = 0x240  #: the first register of a device that sends
_RESPONDING = 0x294  #: the first register of a device that answers RDMA Reads
_REPEATING = 0x2C0  #: the first register after those
_CHUNKS = 0x340  #: the first register of a device that sends over SCTP
#: The registers of a device that receives: queues and buffers; events and counters, up to
#: DELIVERED; EXCEPTIONS_DROPPED; associations and sessions; counters of SCTP; RDMA Reads.
_RECEIVING = (
    range(0x090, 0x0BC), range(0x0C0, 0x11C), range(0x120, 0x124), range(0x18C, 0x1E4),
    range(0x200, _SENDING), range(0x2E0, 0x2E8),
)


@dataclass(frozen=True)
class Field:
    """``bits`` bits of a register from bit ``low`` up."""

    name: str
    low: int
    bits: int
    doc: str


@dataclass(frozen=True)
class Register:
    """A register. Access is ``ro``, ``rw`` or ``wo`` (a write is a command; a read returns 0)."""

    name: str
    address: int
    access: str
    doc: str
    fields: tuple[Field, ...] = ()

    @property
    def sctp(self) -> bool:
        """True if only a device with SCTP has the register."""
        return 0x18C <= self.address < _SENDING or self.address >= _CHUNKS

    @property
    def receive(self) -> bool:
        """True if only a device that receives has the register."""
        return any(self.address in addresses for addresses in _RECEIVING)

    @property
    def transmit(self) -> bool:
        """True if only a device that sends has the register."""
        return self.address >= _SENDING

    @property
    def responder(self) -> bool:
        """True if only a device that answers RDMA Reads has the register."""
        return _RESPONDING <= self.address < _REPEATING

    def pack(self, **values: int) -> int:
        """Returns the register's value whose fields have the given values; the others are 0."""
        low = {field.name: field.low for field in self.fields}
        return sum(int(value) << low[field] for field, value in values.items())

    def unpack(self, value: int) -> dict[str, int]:
        """Returns the fields of a value of the register, by name."""
        return {
            field.name: value >> field.low & (1 << field.bits) - 1 for field in self.fields
        }


def _f(name: str, low: int, bits: int, doc: str) -> Field:
    return Field(name, low, bits, doc)


def _stag(register: str, address: int) -> Iterator[Register]:
    """Yields the registers of a field of an STag's entry, from ``address`` on."""
    (field,) = (each for each in stag.FIELDS if each.register == register)
    halves = (", lower half.", ", upper half.") if len(field.registers) > 1 else ("",)
    for at, (name, half) in enumerate(zip(field.registers, halves, strict=True)):
        yield Register(name, address + 4 * at, "rw", field.doc + half)


REGISTERS = (
    Register("ID", 0x000, "ro", "Identifies the device: 0x524E4943."),
    Register(
        "VERSION",
        0x004,
        "ro",
        "Version of this register map.",
        (_f("minor", 0, 16, "Compatible additions."), _f("major", 16, 16, "Incompatible changes.")),
    ),
    Register("CAP_WIDTH", 0x008, "ro", "Datapath width in bits."),
    Register("CAP_STAGS", 0x00C, "ro", "Entries in the Steering Tag table."),
    Register("CAP_STREAMS", 0x010, "ro", "DDP Streams."),
    Register(
        "CAP_BUFFER",
        0x014,
        "ro",
        "Octets in the packet buffer; an FPDU must fit in it. 0: the device does not receive.",
    ),
    Register("CAP_PAGES", 0x020, "ro", "Slots of the page table."),
    Register("CAP_QUEUE", 0x024, "ro", "Buffers that an untagged queue holds."),
    Register("CAP_BUFFERS", 0x028, "ro", "Slots of the buffer table."),
    Register(
        "CAP_CQS",
        0x02C,
        "ro",
        "Completion queues for clients. With SCTP, the queue of its owner has this number.",
    ),
    Register(
        "CAP_OWNER",
        0x030,
        "ro",
        "Free entries that the queue of SCTP's owner must have for a frame to be taken; the queue"
        " needs more. 0 in a device without SCTP.",
    ),
    Register("CAP_DOORBELLS", 0x034, "ro", "Doorbell pages, with the numbers from 1 on."),
    Register("DOORBELL_PAGE", 0x038, "rw", "Number of the doorbell page of PAGE_IGNORED."),
    Register(
        "PAGE_IGNORED",
        0x03C,
        "ro",
        "The writes through DOORBELL_PAGE that DOORBELLS_IGNORED counts, modulo 2^16. A reset keeps"
        " the count.",
    ),
    Register(
        "STATUS",
        0x018,
        "ro",
        "State of the datapath.",
        (
            _f("event", 0, 1, "The EVENT registers hold an error event."),
            _f(
                "idle",
                1,
                1,
                "Nothing is in flight: every segment was dropped, or was placed and the bus has"
                " responded; every completion is written, or was dropped; and no memory is read.",
            ),
            _f("completion", 2, 1, "A queue is pending: CQ_PENDING shows which."),
            _f("revoking", 3, 1, "A revocation is still in progress."),
            _f("queue_error", 4, 1, "The bus refused an entry of a queue: see CQ_STATE."),
            _f("clearing", 5, 1, "STREAM_COMMIT is being carried out."),
            _f(
                "uncleared",
                6,
                1,
                "The last STREAM_COMMIT left its stream in error, because the stream's event was"
                " not read.",
            ),
        ),
    ),
    Register("SCRATCH", 0x01C, "rw", "Returns the value last written, for bus tests."),
    Register(
        "STAG_INDEX", 0x040, "rw", "Index of the entry to write: the upper 24 bits of the STag."
    ),
    Register(
        "STAG_FLAGS",
        0x044,
        "rw",
        "Key, state and rights of the entry.",
        tuple(_f(each.name, each.low, each.bits, each.doc) for each in stag.FLAGS),
    ),
    *_stag("OWNER", 0x048),
    *_stag("TO", 0x04C),
    *_stag("LEN", 0x054),
    *_stag("ADDR", 0x05C),
    Register("STAG_COMMIT", 0x064, "wo", "Writes the STAG registers to the entry STAG_INDEX."),
    *_stag("PAGES", 0x068),
    Register("PAGE_INDEX", 0x06C, "rw", "Slot of the page table to write."),
    Register(
        "PAGE_ADDR_LO",
        0x070,
        "rw",
        "Host address of a page, a multiple of the page size, lower half.",
    ),
    Register("PAGE_ADDR_HI", 0x074, "rw", "Host address of a page, upper half."),
    Register("PAGE_COMMIT", 0x078, "wo", "Writes PAGE_ADDR to the slot PAGE_INDEX."),
    Register("REVOKE_STAG", 0x07C, "wo", "Revokes the STag whose index is in STAG_INDEX."),
    Register("STREAM_INDEX", 0x080, "rw", "Number of the stream to write."),
    Register(
        "STREAM_FLAGS",
        0x084,
        "rw",
        "Settings for receiving on the stream.",
        (
            _f("enable", 0, 1, "1: segments are placed; 0: they are dropped and counted."),
            _f("crc", 1, 1, "The MPA CRC is in use (RFC 5044 section 4.4)."),
            _f("markers", 2, 1, "MPA markers are in use (RFC 5044 section 4.3)."),
        ),
    ),
    Register("STREAM_PD", 0x088, "rw", "Protection Domain of the stream (16 bits)."),
    Register(
        "STREAM_COMMIT",
        0x08C,
        "wo",
        "Writes the entry and, if the stream's event was read, clears the stream's error state.",
    ),
    Register(
        "STREAM_CQ",
        0x0FC,
        "rw",
        "Completion queue of the stream. STREAM_COMMIT writes it too.",
        (
            _f("receive", 0, 8, "The queue for messages that the stream receives."),
            _f("silent", 8, 1, "1: tagged messages do not complete."),
        ),
    ),
    Register("QUEUE_STREAM", 0x090, "rw", "Stream of the queue to open, close or post to."),
    Register("QUEUE_NUMBER", 0x094, "rw", "Queue Number of that queue, 0 to 3."),
    Register("QUEUE_MSN", 0x098, "rw", "Message Sequence Number of the buffer to post."),
    Register(
        "QUEUE_OPEN",
        0x09C,
        "wo",
        "Opens the queue without buffers; the first buffer must be posted with this QUEUE_MSN.",
    ),
    Register("QUEUE_CLOSE", 0x0A0, "wo", "Closes the queue: its Queue Number becomes invalid."),
    Register("BUFFER_ADDR_LO", 0x0A4, "rw", "Host address of a buffer, lower half."),
    Register("BUFFER_ADDR_HI", 0x0A8, "rw", "Host address of a buffer, upper half."),
    Register("BUFFER_LENGTH", 0x0AC, "rw", "Octets in the buffer."),
    Register("BUFFER_PAGES", 0x0B0, "rw", "Page size of the buffer, encoded as in STAG_PAGES."),
    Register("BUFFER_COOKIE", 0x0B4, "rw", "Number that the buffer's completion returns."),
    Register(
        "BUFFER_POST",
        0x0B8,
        "wo",
        "Posts the buffer for message QUEUE_MSN, which must be the one after the last posted. The"
        " value is the slot of the buffer table that then holds the buffer; no buffer that still"
        " waits for a message may be in it. A queue that is not open is open afterwards.",
    ),
    Register(
        "REVOKE_STREAM",
        0x0BC,
        "wo",
        "Disables the stream in STREAM_INDEX (its CRC and markers too), and revokes the STags bound"
        " to it.",
    ),
    Register(
        "EVENT_CODE",
        0x0C0,
        "ro",
        "The error's number, RFC 5041 section 7.2.",
        (
            _f("code", 0, 8, "Error Code."),
            _f(
                "type",
                8,
                4,
                "Error Type; 10 stands for RDMAP's Remote Operation Error (RFC 5040 section 4.8): a"
                " Read Response that was not asked for.",
            ),
        ),
    ),
    Register("EVENT_STREAM", 0x0C4, "ro", "Stream on which the error occurred."),
    Register("EVENT_LENGTH", 0x0C8, "ro", "Octets of the DDP Segment, header included."),
    Register("EVENT_SEQUENCE", 0x0CC, "ro", "LLP sequence number of the segment's FPDU."),
    Register(
        "EVENT_HEADER0",
        0x0D0,
        "ro",
        "The LLP's length and then the DDP header, as received: octets 0 to 3, the first lowest."
        " Octets after the end of the segment, or of its packet, may be any that the device has"
        " received: do not show them to the stream's client.",
    ),
    Register("EVENT_HEADER1", 0x0D4, "ro", "Octets 4 to 7 of the header."),
    Register("EVENT_HEADER2", 0x0D8, "ro", "Octets 8 to 11 of the header."),
    Register("EVENT_HEADER3", 0x0DC, "ro", "Octets 12 to 15 of the header."),
    Register("EVENT_HEADER4", 0x0E0, "ro", "Octets 16 to 19 of the header."),
    Register("EVENT_POP", 0x0E4, "wo", "Removes the oldest event."),
    Register("PLACED_SEGMENTS", 0x100, "ro", "Segments placed."),
    Register(
        "PLACED_OCTETS_LO",
        0x104,
        "ro",
        "Octets placed, lower half; a read also latches the upper half into PLACED_OCTETS_HI.",
    ),
    Register(
        "PLACED_OCTETS_HI", 0x108, "ro", "Octets placed, upper half at the last read of the lower."
    ),
    Register("EXCEPTIONS", 0x10C, "ro", "FPDUs forwarded to the exception stream."),
    Register("ERRORS", 0x110, "ro", "Segments that raised an error event."),
    Register(
        "DROPPED", 0x114, "ro", "Segments dropped silently, after an error or on a disabled stream."
    ),
    Register("DIGEST_ERRORS", 0x118, "ro", "FPDUs whose CRC did not match."),
    Register("DELIVERED", 0x11C, "ro", "Completions written."),
    Register(
        "EXCEPTIONS_DROPPED", 0x120, "ro", "FPDUs for which the exception stream had no room."
    ),
    Register(
        "DOORBELLS_IGNORED",
        0x124,
        "ro",
        "Writes to doorbell pages that had no effect: to a stream or queue of another page, or"
        " that does not exist; to an offset without a doorbell; of fewer than four octets.",
    ),
    Register("CQ_BASE_LO", 0x140, "rw", "Host address of a completion queue's ring, lower half."),
    Register(
        "CQ_BASE_HI",
        0x144,
        "rw",
        "Host address of the ring, upper half. It is a multiple of 32 octets.",
    ),
    Register("CQ_SIZE", 0x148, "rw", "Base-2 logarithm of the ring's number of entries, 1 to 15."),
    Register(
        "CQ_ENABLE",
        0x14C,
        "rw",
        "Whether the queue is in use.",
        (
            _f("enable", 0, 1, "1: the device writes completions."),
            _f("page", 8, PAGE_BITS, "The doorbell page of the queue; 0: none."),
        ),
    ),
    Register(
        "CQ_DOORBELL",
        0x150,
        "rw",
        "Takes completions of a queue, and may arm it.",
        (
            _f("consumer", 0, 16, "Completions that the host has taken, modulo 2^16."),
            _f("queue", 16, 8, "The queue."),
            _f(
                "arm",
                31,
                1,
                "1: the queue is not pending now, and becomes pending, once, when the device has"
                " written others, see CQ_COALESCE and CQ_TIMEOUT.",
            ),
        ),
    ),
    Register(
        "CQ_PRODUCER",
        0x154,
        "ro",
        "Completions that the device has written to the queue CQ_INDEX, modulo 2^16.",
    ),
    Register(
        "CQ_COALESCE", 0x158, "rw", "Number of waiting completions that makes the queue pending."
    ),
    Register(
        "CQ_TIMEOUT",
        0x15C,
        "rw",
        "Cycles after which a waiting completion makes the queue pending by itself.",
    ),
    Register("CQ_INDEX", 0x164, "rw", "Queue of the other CQ registers but CQ_DOORBELL."),
    Register(
        "CQ_COMMIT",
        0x168,
        "wo",
        "Writes CQ_BASE, CQ_SIZE and CQ_ENABLE to the queue CQ_INDEX, which begins anew, unarmed.",
    ),
    Register(
        "CQ_STATE",
        0x16C,
        "ro",
        "State of the queue CQ_INDEX.",
        (
            _f(
                "restarting",
                0,
                1,
                "CQ_COMMIT waits for responses of the bus. Until then the queue has no room.",
            ),
            _f("failed", 1, 1, "The bus refused an entry; the queue has no room until CQ_COMMIT."),
        ),
    ),
    Register(
        "CQ_MODERATE", 0x170, "wo", "Writes CQ_COALESCE and CQ_TIMEOUT to the queue CQ_INDEX."
    ),
    Register(
        "CQ_PENDING",
        0x174,
        "ro",
        "Queues that interrupt, a 1 in the position of each queue's number.",
    ),
    Register(
        "IRQ_MASK",
        0x160,
        "rw",
        "Sources that do not raise the interrupt, a 1 for each.",
        (_f("event", 0, 1, "Error events."), _f("completion", 2, 1, "Completions.")),
    ),
    Register(
        "CAP_ADDRESS",
        0x178,
        "ro",
        "Bits of a host address that the device uses. It takes higher bits to be 0, so memory with"
        " higher addresses must not be used.",
    ),
    Register("CAP_ASSOCIATIONS", 0x180, "ro", "SCTP associations; 0 in a device without SCTP."),
    Register(
        "CAP_WINDOW", 0x184, "ro", "DDP-SSNs of a stream that may arrive ahead of the next one."
    ),
    Register(
        "CAP_SENDS",
        0x188,
        "ro",
        "What the device sends.",
        (
            _f("messages", 0, 1, "1: messages of the host; the device has the SEND registers."),
            _f("responses", 1, 1, "1: answers to RDMA Reads too, with the RESPONSE registers."),
            _f("chunks", 2, 1, "1: over SCTP too, with the PATH registers."),
            _f("reads", 8, 8, "RDMA Reads over MPA that a stream may have outstanding."),
        ),
    ),
    *(
        Register(
            f"ASSOC_{end}{k}",
            base + 4 * k,
            "rw",
            f"{text}, octets {4 * k} to {4 * k + 3}, first lowest; IPv4: 4 octets, then zeros.",
        )
        for end, base, text in (
            ("SRC", 0x18C, "The peer's address"),
            ("DST", 0x19C, "This end's address"),
        )
        for k in range(4)
    ),
    Register(
        "ASSOC_PORTS",
        0x1AC,
        "rw",
        "SCTP ports of the association.",
        (_f("source", 0, 16, "The peer's port."), _f("destination", 16, 16, "This end's port.")),
    ),
    Register("ASSOC_TAG", 0x1B0, "rw", "Verification Tag in packets from the peer."),
    Register(
        "ASSOC_FLAGS",
        0x1B4,
        "rw",
        "State and number of the association.",
        (
            _f("valid", 0, 1, "The entry is in use."),
            _f("v6", 1, 1, "The addresses are of IPv6."),
            _f("number", 16, 16, "Number of the association; several entries may share it."),
        ),
    ),
    Register(
        "ASSOC_STREAMS",
        0x1B8,
        "rw",
        "DDP Streams of the association. A number past the device's last stream is none.",
        (
            _f("first", 0, 16, "The DDP Stream of SCTP stream 0."),
            _f("count", 16, 16, "How many SCTP streams, from 0 on, are DDP Streams."),
        ),
    ),
    Register(
        "ASSOC_SLOT",
        0x1BC,
        "rw",
        "Slot of the association table that ASSOC_COMMIT writes.",
        (
            _f("slot", 0, 9, "Slot in the way, which has 128 or 512."),
            _f("way", 16, 1, "Way of the table."),
        ),
    ),
    Register("ASSOC_COMMIT", 0x1C0, "wo", "Writes the ASSOC registers to the slot ASSOC_SLOT."),
    Register("SESSION_STREAM", 0x1C4, "rw", "DDP Stream of the SESSION and GUIDE registers."),
    Register(
        "SESSION_FUNCTION",
        0x1C8,
        "rw",
        "Command to the session: the Function Code of the message that the host is about to send"
        " (RFC 5043 section 5.2.3, RFC 6581 section 7); or 0: the association is gone, and the"
        " session with it; 8: the session ends; 9: every chunk up to SESSION_TSN has arrived, and"
        " the session stays as it is.",
    ),
    Register(
        "SESSION_TSN",
        0x1E0,
        "rw",
        "With Function Codes 0, 1, 5 and 9: chunks that the peer sends on this stream with TSNs up"
        " to this one are old, and no session takes them.",
    ),
    Register("SESSION_COMMAND", 0x1CC, "wo", "Gives the command in SESSION_FUNCTION."),
    Register(
        "SESSION_ANSWER",
        0x1D0,
        "ro",
        "Answer to the last SESSION_COMMAND.",
        (
            _f("state", 0, 3, "The session's State."),
            _f("taken", 3, 1, "The message may be sent."),
            _f("busy", 4, 1, "The answer is still outstanding."),
        ),
    ),
    Register("SESSION_PENDING", 0x1D4, "ro", "Session Initiates that wait for the host's answer."),
    Register(
        "GUIDE_NEXT",
        0x1D8,
        "ro",
        "Next DDP-SSN to be delivered on the stream in SESSION_STREAM. The device can take DDP-SSNs"
        " less than CAP_WINDOW ahead of it (RFC 5041 appendix A).",
    ),
    Register("CAP_MPA", 0x1E4, "ro", "1: the device takes DDP over MPA too; 0: over SCTP alone."),
    Register("FRAMES", 0x200, "ro", "Packets taken that belong to an association."),
    Register("FRAMES_DIVERTED", 0x204, "ro", "Frames forwarded whole to the exception stream."),
    Register("FRAMES_DROPPED", 0x208, "ro", "Frames dropped: damaged, or with a wrong checksum."),
    Register("CHUNKS_DUPLICATE", 0x20C, "ro", "Chunks that had been received before."),
    Register(
        "CHUNKS_OUTSIDE", 0x210, "ro", "Chunks outside the window, or without a slot to wait in."
    ),
    Register(
        "CHUNKS_REFUSED",
        0x214,
        "ro",
        "Chunks that fit no legal sequence, or whose session was aborted before.",
    ),
    Register("SEND_STREAM", 0x240, "rw", "Stream of the other SEND registers."),
    Register(
        "SEND_FLAGS",
        0x244,
        "rw",
        "Settings for sending on the stream.",
        (
            _f(
                "open",
                0,
                1,
                "1: segments leave; 0: they are dropped and counted, and messages end without"
                " credit or a free slot for a Read.",
            ),
            _f("crc", 1, 1, "FPDUs have an MPA CRC (RFC 5044 section 4.4)."),
            _f("markers", 2, 1, "FPDUs have MPA markers (RFC 5044 section 4.3)."),
            _f(
                "limited",
                3,
                1,
                "1: FPDUs or chunks leave only before SEND_LIMIT, and chunks only within the credit"
                " of their association.",
            ),
            _f("sctp", 4, 1, "1: the stream sends over SCTP, in a device that does."),
        ),
    ),
    Register(
        "SEND_SEQUENCE",
        0x248,
        "rw",
        "LLP sequence number of the next FPDU's first octet. Over SCTP: chunks of the session so"
        " far, of which the lower 16 bits are the next DDP-SSN.",
    ),
    Register(
        "SEND_AFTER",
        0x24C,
        "rw",
        "Words of four octets since the last marker, 1 to 127, where the next FPDU begins. 127 at"
        " first: the FPDU begins with a marker.",
    ),
    Register(
        "SEND_COMMIT",
        0x250,
        "wo",
        "Opens or closes the sending half with these settings, while no segment of the stream is"
        " under way.",
    ),
    Register(
        "SEND_MULPDU",
        0x254,
        "rw",
        "MULPDU: octets of the stream's longest segments; more than 32,768 count as 32,768.",
    ),
    Register("SEND_MULPDU_COMMIT", 0x258, "wo", "Writes SEND_MULPDU."),
    Register("SEND_QN", 0x25C, "rw", "Queue Number of SEND_MSN, 0 to 3."),
    Register(
        "SEND_MSN", 0x260, "rw", "Message Sequence Number of the next message to that queue."
    ),
    Register(
        "SEND_MSN_COMMIT",
        0x264,
        "wo",
        "Writes SEND_MSN, while no message of the stream is under way.",
    ),
    Register(
        "SEND_STATE",
        0x268,
        "ro",
        "State of the sending half of SEND_STREAM.",
        (
            _f("open", 0, 1, "Segments leave."),
            _f(
                "failed",
                1,
                1,
                "A segment could not be read: an entry of its work request was not valid, an STag"
                " did not allow it, the stream was not enabled, or the bus answered with an error."
                " This closed the half.",
            ),
            _f("response", 2, 1, "That segment is one of a Read Response."),
            _f("repeating", 3, 1, "An FPDU of the stream is on its way again."),
            _f(
                "lost",
                4,
                1,
                "The ring could not be read, or an FPDU not be sent again: messages that were not"
                " released have failed.",
            ),
            _f(
                "waits",
                5,
                2,
                "What the stream's next message waited for in its last turn. 1: for credit; 2: for"
                " the end of one of its Reads, see READ_ORD, or of all of them, if it has the flag"
                " FENCE; 3: for credit of its association.",
            ),
            _f("answered", 16, 16, "Read Responses that left whole, modulo 2^16."),
        ),
    ),
    Register(
        "SEND_RING_LO", 0x274, "rw", "Host address of the send ring, lower half."
    ),
    Register(
        "SEND_RING_HI",
        0x278,
        "rw",
        "Host address of the ring, upper half. It is a multiple of 64 octets.",
    ),
    Register(
        "SEND_RING_SIZE",
        0x27C,
        "rw",
        "The ring.",
        (
            _f("size", 0, 4, "Base-2 logarithm of its number of entries, 1 to 15."),
            _f("open", 8, 1, "1: the device reads the ring."),
            _f("cq", 16, 8, "The completion queue for messages that the stream sends."),
            _f("repeats", 24, 1, "1: the LLP keeps no copy, and messages end by SEND_RELEASED."),
            _f("page", 25, PAGE_BITS, "The doorbell page of the stream; 0: none."),
        ),
    ),
    Register(
        "SEND_RING_COMMIT",
        0x280,
        "wo",
        "Writes the SEND_RING registers, while the stream sends nothing. Its indices begin with 0,"
        " and completions that the device keeps for its former ring are lost.",
    ),
    Register(
        "SEND_PAGE_COMMIT",
        0x2DC,
        "wo",
        "Writes SEND_RING_SIZE.page for SEND_STREAM, and nothing else, at any time. From then on no"
        " other page rings the stream.",
    ),
    Register(
        "SEND_DOORBELL",
        0x284,
        "rw",
        "Gives the device the entries of a stream's ring before an index.",
        (
            _f("producer", 0, 16, "Entries that the host has written, modulo 2^16."),
            _f("stream", 16, 16, "The stream."),
        ),
    ),
    Register(
        "SEND_CONSUMER",
        0x288,
        "ro",
        "Entries of the ring of SEND_STREAM whose messages the device has cut, modulo 2^16.",
    ),
    Register(
        "SEND_LIMIT",
        0x28C,
        "rw",
        "The credit of SEND_STREAM: the LLP sequence number after the last octet that may leave, at"
        " most 2^31 - 1 after the next octet. A segment begins if its whole FPDU fits, markers, PAD"
        " and CRC included; in a stream with markers, if 16 octets more do. Over SCTP: the chunks"
        " of the session that may leave, counted as in SEND_SEQUENCE.",
    ),
    Register(
        "SEND_LIMIT_COMMIT",
        0x290,
        "wo",
        "Writes SEND_LIMIT, at any time, and gives the stream a turn. Before a stream is opened"
        " that is limited, its limit has to be written.",
    ),
    Register("SENT", 0x26C, "ro", "FPDUs sent."),
    Register("SEND_DROPPED", 0x270, "ro", "Segments that were not sent."),
    Register(
        "RESPONSE_LO", 0x294, "rw",
        "Host address of the slots for Read Requests to SEND_STREAM, lower half.",
    ),
    Register(
        "RESPONSE_HI",
        0x298,
        "rw",
        "Host address of the slots, upper half. It is a multiple of 64 octets, as a slot has, of"
        " which a request takes the first 28.",
    ),
    Register(
        "RESPONSE_SLOTS",
        0x29C,
        "rw",
        "The slots.",
        (
            _f("size", 0, 4, "Base-2 logarithm of their number, up to 12."),
            _f(
                "open",
                8,
                1,
                "1: the device answers the stream's Read Requests. 0: it begins no further"
                " response, and the other fields are as before.",
            ),
            _f("ird", 16, 13, "Requests that the peer may have outstanding, at most all slots."),
        ),
    ),
    Register(
        "RESPONSE_BUFFER",
        0x2A0,
        "rw",
        "The place of the first slot's buffer in the buffer table. The other slots follow it.",
    ),
    Register("RESPONSE_MSN", 0x2A4, "rw", "MSN of the first Read Request to be answered."),
    Register(
        "RESPONSE_COMMIT",
        0x2A8,
        "wo",
        "Writes the RESPONSE registers; with open, while no Read Request of the stream is being"
        " answered.",
    ),
    Register(
        "RESPONSE_NEXT",
        0x2AC,
        "ro",
        "MSN of the first Read Request to SEND_STREAM whose response was not cut whole.",
    ),
    Register(
        "RESPONSE_ASKED",
        0x2B0,
        "ro",
        "The MSN that follows the last delivered Read Request to SEND_STREAM, modulo 2^16.",
    ),
    Register(
        "RESPONSE_SEQUENCE",
        0x2B4,
        "ro",
        "LLP sequence number after the last FPDU of SEND_STREAM that the device has made. FPDUs"
        " before it may still be on their way to the port.",
    ),
    Register(
        "REPEAT_SEQUENCE",
        0x2C0,
        "rw",
        "LLP sequence number of the FPDU, or TSN of the chunk, that is to leave again.",
    ),
    Register(
        "REPEAT_ENTRY",
        0x2C4,
        "rw",
        "Where the FPDU's message is.",
        (
            _f("entry", 0, 16, "As in the record; response: the sum of its RESPONSE_MSN and that."),
            _f("entries", 16, 8, "As in the record."),
            _f("response", 24, 1, "As in the record."),
        ),
    ),
    Register("REPEAT_OFFSET", 0x2C8, "rw", "The record's offset."),
    Register(
        "REPEAT_LENGTH",
        0x2CC,
        "rw",
        "The segment.",
        (
            _f(
                "length",
                0,
                16,
                "The FPDU's ULPDU_Length, at most 32,768; over SCTP: octets after the DDP-SSN.",
            ),
            _f("ssn", 16, 16, "Over SCTP: the DDP-SSN."),
        ),
    ),
    Register("REPEAT_MSN", 0x2D0, "rw", "The MSN in the FPDU, if it is of an untagged message."),
    Register(
        "REPEAT_COMMIT",
        0x2D4,
        "wo",
        "Has the FPDU of SEND_STREAM sent again. It waits while eight others are on their way.",
    ),
    Register(
        "SEND_RELEASED",
        0x2D8,
        "rw",
        "Ends messages of a stream that repeats, which will not be sent again.",
        (
            _f("index", 0, 16, "The index after the last entry of these, all of which have left."),
            _f("stream", 16, 15, "The stream."),
            _f("signaled", 31, 1, "One of them has the flag SIGNALED."),
        ),
    ),
    Register(
        "READ_ORD",
        0x2E0,
        "rw",
        "ORD of SEND_STREAM: how many RDMA Reads it may have outstanding, up to CAP_SENDS.reads.",
    ),
    Register(
        "READ_COMMIT",
        0x2E4,
        "wo",
        "Writes READ_ORD. From the first time on, after STREAM_COMMIT and before any READ, the"
        " device takes Read Responses on the stream only as they were asked for. No effect in a"
        " device without MPA.",
    ),
    Register(
        "SEND_CHUNKS",
        0x340,
        "rw",
        "The place of SEND_STREAM in SCTP, for SEND_COMMIT.",
        (
            _f("association", 0, 16, "The association, with a path."),
            _f("sid", 16, 16, "The SCTP stream."),
        ),
    ),
    Register("PATH_ASSOCIATION", 0x344, "rw", "Association of the other PATH registers."),
    Register(
        "PATH_AT",
        0x348,
        "rw",
        "Number of the word in PATH_WORD. The headers of a packet, up to the SCTP header, end with"
        " octet 97, so the first one of these words is that in PATH_FORM.",
    ),
    Register(
        "PATH_WORD",
        0x34C,
        "rw",
        "Four octets of link, IP and UDP header, the first octet lowest. The device computes their"
        " lengths and checksums.",
    ),
    Register("PATH_WORD_COMMIT", 0x350, "wo", "Writes PATH_WORD."),
    Register(
        "PATH_PORTS", 0x354, "rw", "The ports of the SCTP header, the first octet lowest."
    ),
    Register("PATH_TAG", 0x358, "rw", "The Verification Tag, the first octet lowest."),
    Register(
        "PATH_FORM",
        0x35C,
        "rw",
        "The headers.",
        (
            _f("first", 0, 5, "The word with which a frame begins: its headers have 98 - 4 * first"
               " octets."),
            _f("udp", 5, 1, "The last eight octets are a UDP header."),
            _f("v6", 6, 1, "The IP header is that of IPv6; otherwise of IPv4, without options."),
        ),
    ),
    Register(
        "PATH_SUMS",
        0x360,
        "rw",
        "Sums of halves of 16 bits, the first octet of each lowest, with the carry added (RFC"
        " 1071).",
        (
            _f("ip", 0, 16, "Of the IPv4 header, without its length and its checksum."),
            _f("udp", 16, 16, "Of pseudo-header and UDP header, without lengths and checksum."),
        ),
    ),
    Register("PATH_TSN", 0x364, "rw", "TSN of the association's next chunk."),
    Register(
        "PATH_COMMIT",
        0x368,
        "wo",
        "Writes PATH_PORTS to PATH_TSN and PATH_STREAMS, while no segment of the association is"
        " under way. Its octets begin with 0, and no stream waits for it any more.",
    ),
    Register(
        "PATH_STREAMS",
        0x36C,
        "rw",
        "The streams of the association, for PATH_COMMIT. No stream may be one of two associations;"
        " a number past the device's last stream is none; with a count of 0 the association has"
        " none.",
        (
            _f("first", 0, 16, "The first one."),
            _f("count", 16, 16, "How many follow one another."),
        ),
    ),
    Register(
        "PATH_LIMIT_TSN",
        0x370,
        "rw",
        "The association's credit in chunks: the TSN that its chunks may not reach, at most 2^31"
        " - 1 after that of the next one.",
    ),
    Register(
        "PATH_LIMIT_OCTETS",
        0x374,
        "rw",
        "The association's credit in octets: the sum, modulo 2^32, of the user data of all chunks"
        " that may leave, from PATH_COMMIT on, repeats not counted; at most 2^31 - 1 more than"
        " have left. The user data of a chunk is its Length less 16 (RFC 9260 section 3.3.1): the"
        " DDP-SSN and the segment or message, without padding.",
    ),
    Register(
        "PATH_LIMIT_COMMIT",
        0x378,
        "wo",
        "Writes PATH_LIMIT_TSN and PATH_LIMIT_OCTETS, at any time, and gives a turn to the first"
        " stream that waits for them.",
    ),
)


def registers_of(config: RnicConfig) -> list[Register]:
    """Returns the registers of a device with these parameters."""
    return [
        each
        for each in REGISTERS
        if (config.sctp or not each.sctp)
        and (config.receive or not each.receive)
        and (config.transmit or not each.transmit)
        and (config.responder or not each.responder)
    ]


#: Names of the counters, lower halves before upper ones; of those that need SCTP, and of those that
#: only a device that sends has.
COUNTERS = tuple(
    register.name for register in REGISTERS if 0x100 <= register.address < 0x140
)
SCTP_COUNTERS = tuple(
    register.name for register in REGISTERS if 0x200 <= register.address < _SENDING
)
SEND_COUNTERS = "SENT", "SEND_DROPPED"

BY_NAME = {register.name: register for register in REGISTERS}


def address(name: str) -> int:
    """Returns the octet address of a register."""
    return BY_NAME[name].address


def doorbell(name: str, page: int) -> int:
    """Returns the octet address of a doorbell in a page, or with page 0 among the registers.

    Raises
    ------
    ValueError
        There is no such page, or the register is not in it.
    """
    if not 0 <= page <= PAGES:
        raise ValueError(f"a doorbell page must be from 0 to {PAGES}, not {page!r}")
    if page and name not in DOORBELLS:
        raise ValueError(f"a doorbell page has {' and '.join(DOORBELLS)}, not {name!r}")
    return page * PAGE_SIZE + address(name)


def pack(name: str, **values: int) -> int:
    """Returns the value of a register whose fields have the given values; the others are 0."""
    return BY_NAME[name].pack(**values)


def unpack(name: str, value: int) -> dict[str, int]:
    """Returns the fields of a register that has this value, by name."""
    return BY_NAME[name].unpack(value)
