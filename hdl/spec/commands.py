"""Writes each sequence of register accesses with which a host gives the device a command, once.

A command is a tuple of steps: :class:`Write` and, where the host has to wait, :class:`Wait`. Every
function here returns one; who calls it carries the steps out, in their order, on its own link to
the device. The registers keep their values, so a caller may leave out a write of a value that a
``rw`` register has already.
"""

from typing import NamedTuple

from . import regs
from .net import WAYS, Move, slot_bits
from .path import SendPath
from .sctp import Function
from .stag import Access, encode

_HALF = 0xFFFFFFFF


class Write(NamedTuple):
    """Write ``value`` to the register of this name; a doorbell, in a doorbell page if not 0."""

    register: str
    value: int
    page: int = 0

    @property
    def address(self) -> int:
        """The octet address to be written."""
        return regs.doorbell(self.register, self.page)


class Wait(NamedTuple):
    """Read the register of this name until its bits in ``mask`` are those of ``value``."""

    register: str
    mask: int
    value: int

    @property
    def address(self) -> int:
        """The octet address to be read."""
        return regs.address(self.register)


#: Ends :func:`set_stream`: from then on ``STATUS.uncleared`` shows its outcome.
CLEARED = Wait("STATUS", regs.pack("STATUS", clearing=1), 0)
#: Ends every revocation: from then on the device writes not one octet more to the region.
REVOKED = Wait("STATUS", regs.pack("STATUS", revoking=1), 0)
#: Ends every change of a completion queue: the device no longer writes to its earlier ring.
RESTARTED = Wait("CQ_STATE", regs.pack("CQ_STATE", restarting=1), 0)


def _write(prefix: str, **values: int) -> tuple[Write, ...]:
    """Writes registers whose names begin alike; a pair of LO and HI takes 64 bits."""
    steps = []
    for name, value in values.items():
        register = f"{prefix}_{name}"
        if register in regs.BY_NAME:
            steps.append(Write(register, int(value)))
        else:
            steps += Write(f"{register}_LO", value & _HALF), Write(f"{register}_HI", value >> 32)
    return tuple(steps)


# -- regions --------------------------------------------------------------------------------------


def set_stag(
    stag: int,
    access: Access,
    *,
    to: int,
    length: int,
    address: int,
    pages: int = 0,
    pd: int | None = None,
    stream: int | None = None,
) -> tuple[Write, ...]:
    """Replaces an entry of the STag table.

    Parameters
    ----------
    stag, access, to, length
        The Steering Tag, its rights, the Tagged Offset of the first octet, and how many octets.
    address, pages
        The address of the first octet, and the page code: see the register STAG_PAGES.
    pd, stream
        The protection domain that the entry belongs to, or the one stream; one of the two.
    """
    if (owner := pd if stream is None else stream) is None or None not in (pd, stream):
        raise ValueError(
            f"an STag must belong to a protection domain or a stream, not to {pd!r} and {stream!r}"
        )
    entry = encode(
        access, valid=1, key=stag & 0xFF, bound=stream is not None, owner=owner, to=to,
        length=length, address=address, pages=pages,
    )  # fmt: skip
    return (
        Write("STAG_INDEX", stag >> 8),
        *(Write(name, value) for name, value in entry.items()),
        Write("STAG_COMMIT", 1),
    )


def clear_stag(stag: int) -> tuple[Write, ...]:
    """Empties the STag's entry of the table, which must not be in use."""
    return _write("STAG", INDEX=stag >> 8, FLAGS=0, COMMIT=1)


def revoke_stag(stag: int) -> tuple[Write | Wait, ...]:
    """Revokes an STag, and waits until that is done."""
    return Write("STAG_INDEX", stag >> 8), Write("REVOKE_STAG", 1), REVOKED


def set_page(slot: int, address: int) -> tuple[Write, ...]:
    """Writes the host address of a page to a slot of the page table."""
    return _write("PAGE", INDEX=slot, ADDR=address, COMMIT=1)


# -- streams and their queues ---------------------------------------------------------------------


def set_stream(
    number: int, *, pd: int, crc: bool = False, markers: bool = False, cq: int | None = 0
) -> tuple[Write, ...]:
    """Enables a stream, whose received messages complete in the queue ``cq``. In a device that only
    sends ``cq`` is None.

    This clears the stream's error state if its event was read: see :data:`CLEARED`.
    """
    flags = regs.pack("STREAM_FLAGS", enable=1, crc=crc, markers=markers)
    queue = {} if cq is None else {"CQ": regs.pack("STREAM_CQ", receive=cq)}
    return _write("STREAM", INDEX=number, FLAGS=flags, PD=pd, **queue, COMMIT=1)


def revoke_stream(number: int) -> tuple[Write | Wait, ...]:
    """Disables a stream, revokes the STags bound to it, and waits until that is done."""
    return Write("STREAM_INDEX", number), Write("REVOKE_STREAM", 1), REVOKED


def open_queue(stream: int, qn: int, msn: int = 1) -> tuple[Write, ...]:
    """Opens a queue without buffers; its first buffer will be for message ``msn``."""
    return _write("QUEUE", STREAM=stream, NUMBER=qn, MSN=msn, OPEN=1)


def close_queue(stream: int, qn: int) -> tuple[Write, ...]:
    """Closes a queue: its Queue Number becomes invalid."""
    return _write("QUEUE", STREAM=stream, NUMBER=qn, CLOSE=1)


def post(
    stream: int,
    qn: int,
    msn: int,
    *,
    address: int,
    length: int,
    cookie: int,
    slot: int,
    pages: int = 0,
) -> tuple[Write, ...]:
    """Posts a buffer for message ``msn`` of a queue. The last step is the one that posts it.

    Parameters
    ----------
    address, pages
        As in :func:`set_stag`.
    length, cookie, slot
        How many octets, the number that the completion returns, and a free slot of the buffer
        table.
    """
    # Without _write: this command is given for each message.
    return (
        Write("QUEUE_STREAM", stream),
        Write("QUEUE_NUMBER", qn),
        Write("QUEUE_MSN", msn),
        Write("BUFFER_ADDR_LO", address & _HALF),
        Write("BUFFER_ADDR_HI", address >> 32),
        Write("BUFFER_LENGTH", length),
        Write("BUFFER_PAGES", pages),
        Write("BUFFER_COOKIE", cookie),
        Write("BUFFER_POST", slot),
    )


# -- sending --------------------------------------------------------------------------------------


def set_sending(
    stream: int,
    *,
    sequence: int,
    after: int = 127,
    crc: bool = False,
    markers: bool = False,
    limited: bool = False,
    open: bool = True,
) -> tuple[Write, ...]:
    """Opens the sending half of a stream over MPA; or closes it.

    ``sequence`` is the LLP sequence number of the next FPDU, and ``after`` the words since the last
    marker. If the stream is ``limited``, :func:`set_limit` was given before.
    """
    flags = regs.pack("SEND_FLAGS", open=open, crc=crc, markers=markers, limited=limited)
    return _write(
        "SEND", STREAM=stream, FLAGS=flags, SEQUENCE=sequence, AFTER=after, COMMIT=1
    )


def set_sending_sctp(
    stream: int, *, association: int, sid: int, sequence: int = 0, limited: bool = False,
    open: bool = True,
) -> tuple[Write, ...]:  # fmt: skip
    """Opens the sending half of a stream over SCTP, on the SCTP stream ``sid``; or closes it.

    ``sequence`` counts the chunks of the session so far. :func:`set_path` was given before; if the
    stream is ``limited``, so were :func:`set_limit` and :func:`set_path_limit`.
    """
    flags = regs.pack("SEND_FLAGS", open=open, limited=limited, sctp=1)
    chunks = regs.pack("SEND_CHUNKS", association=association, sid=sid)
    return _write(
        "SEND", STREAM=stream, FLAGS=flags, SEQUENCE=sequence, CHUNKS=chunks, COMMIT=1
    )


def set_path(
    association: int, path: SendPath, *, tsn: int, first: int = 0, count: int = 0
) -> tuple[Write, ...]:
    """Gives an association the headers of its packets, and the TSN of its next chunk.

    Its streams that may be limited are ``count`` from the number ``first`` on.
    """
    words = (
        _write("PATH", AT=at, WORD=word, WORD_COMMIT=1) for at, word in path.words.items()
    )
    return (
        Write("PATH_ASSOCIATION", association),
        *(step for steps in words for step in steps),
        *_write(
            "PATH", PORTS=path.ports, TAG=path.wire_tag,
            FORM=regs.pack("PATH_FORM", first=path.first, udp=path.udp, v6=path.v6),
            SUMS=regs.pack("PATH_SUMS", ip=path.ip_sum, udp=path.udp_sum), TSN=tsn,
            STREAMS=regs.pack("PATH_STREAMS", first=first, count=count), COMMIT=1,
        ),
    )  # fmt: skip


def close_path(association: int) -> tuple[Write, ...]:
    """Takes its streams from an association that sends nothing more."""
    return (
        Write("PATH_ASSOCIATION", association),
        *_write("PATH", STREAMS=0, COMMIT=1),
    )


def set_path_limit(association: int, tsn: int, octets: int) -> tuple[Write, ...]:
    """Lets chunks of an association leave whose TSN is before ``tsn``, and that have no more than
    ``octets`` of user data altogether since :func:`set_path`.
    """
    return (
        Write("PATH_ASSOCIATION", association),
        *_write("PATH_LIMIT", TSN=tsn & _HALF, OCTETS=octets & _HALF, COMMIT=1),
    )


def set_limit(stream: int, limit: int) -> tuple[Write, ...]:
    """Lets FPDUs of a stream leave that end at the LLP sequence number ``limit`` or before."""
    return _write("SEND", STREAM=stream, LIMIT=limit & _HALF, LIMIT_COMMIT=1)


def set_send_ring(
    stream: int, address: int, size: int, *, cq: int = 0, repeats: bool = False, page: int = 0
) -> tuple[Write, ...]:
    """Gives a stream a send ring of 2 to the power of ``size`` entries.

    Messages that it sends complete in the queue ``cq``; with ``repeats``, once they are released.
    The stream's doorbell is in the doorbell page ``page`` too, unless that is 0.
    """
    ring = regs.pack("SEND_RING_SIZE", size=size, open=1, cq=cq, repeats=repeats, page=page)
    return (
        Write("SEND_STREAM", stream),
        *_write("SEND_RING", LO=address & _HALF, HI=address >> 32, SIZE=ring, COMMIT=1),
    )


def set_send_page(stream: int, page: int = 0) -> tuple[Write, ...]:
    """Gives a stream's doorbell another page, or with 0 none, while the stream may be sending."""
    return (
        Write("SEND_STREAM", stream),
        Write("SEND_RING_SIZE", regs.pack("SEND_RING_SIZE", page=page)),
        Write("SEND_PAGE_COMMIT", 1),
    )


def close_send_ring(stream: int) -> tuple[Write, ...]:
    """Takes a stream's ring and its doorbell page away, while the stream sends nothing.

    If the stream waited for its association, the doorbell lets the next one have its turn.
    """
    return (*_write("SEND", STREAM=stream, RING_SIZE=0, RING_COMMIT=1), *ring_send(stream, 0))


def ring_send(stream: int, producer: int, *, page: int = 0) -> tuple[Write, ...]:
    """Gives the device the entries of a stream's ring before the index ``producer``.

    The doorbell is that of the doorbell page ``page``, or with 0 the register.
    """
    doorbell = regs.pack("SEND_DOORBELL", stream=stream, producer=producer & 0xFFFF)
    return (Write("SEND_DOORBELL", doorbell, page),)


def release(stream: int, index: int, *, signaled: bool = True) -> tuple[Write, ...]:
    """Ends the messages of a stream that repeats whose entries are before ``index``."""
    released = regs.pack(
        "SEND_RELEASED", stream=stream, index=index & 0xFFFF, signaled=signaled)
    return (Write("SEND_RELEASED", released),)


def repeat(
    stream: int, sequence: int, *, entry: int, entries: int, offset: int, length: int,
    msn: int = 0, response: bool = False, ssn: int = 0,
) -> tuple[Write, ...]:  # fmt: skip
    """Sends an FPDU or a chunk again; the arguments are those of the ``REPEAT`` registers."""
    where = regs.pack(
        "REPEAT_ENTRY", entry=entry & 0xFFFF, entries=entries, response=response)
    return (
        Write("SEND_STREAM", stream),
        *_write("REPEAT", SEQUENCE=sequence & _HALF, ENTRY=where, OFFSET=offset,
                LENGTH=regs.pack("REPEAT_LENGTH", length=length, ssn=ssn & 0xFFFF), MSN=msn,
                COMMIT=1),
    )  # fmt: skip


def set_mulpdu(stream: int, mulpdu: int) -> tuple[Write, ...]:
    """Writes the MULPDU of a stream, for its next segments."""
    return _write("SEND", STREAM=stream, MULPDU=mulpdu, MULPDU_COMMIT=1)


def set_sent_msn(stream: int, qn: int, msn: int) -> tuple[Write, ...]:
    """Writes the MSN of the next message that a stream sends to a queue."""
    return _write("SEND", STREAM=stream, QN=qn, MSN=msn, MSN_COMMIT=1)


def set_reads(stream: int, ord: int) -> tuple[Write, ...]:
    """Lets a stream over MPA have ``ord`` RDMA Reads outstanding, after :func:`set_stream`.

    From then on the device takes Read Responses only as they were asked for.
    """
    return (Write("SEND_STREAM", stream), *_write("READ", ORD=ord, COMMIT=1))


def set_responses(
    stream: int, address: int, size: int, *, ird: int, buffer: int, msn: int = 1, open: bool = True
) -> tuple[Write, ...]:
    """Lets the device answer the Read Requests to a stream, from the MSN ``msn`` on.

    The requests lie in 2 to the power of ``size`` slots of 64 octets; ``buffer`` is the number of
    the first one in the buffer table. The same values and ``open=False`` end the answers.
    """
    slots = regs.pack("RESPONSE_SLOTS", size=size, open=open, ird=ird)
    return (
        Write("SEND_STREAM", stream),
        *_write("RESPONSE", LO=address & _HALF, HI=address >> 32, SLOTS=slots, BUFFER=buffer,
                MSN=msn, COMMIT=1),
    )  # fmt: skip


# -- completions ----------------------------------------------------------------------------------


def moderate(count: int, timeout: int, *, queue: int = 0) -> tuple[Write, ...]:
    """Lets ``count`` completions that wait, or one that is ``timeout`` cycles old, interrupt."""
    return _write("CQ", INDEX=queue, COALESCE=count, TIMEOUT=timeout, MODERATE=1)


def mask_interrupts(*, event: bool = False, completion: bool = False) -> tuple[Write, ...]:
    """Masks the interrupts of error events and of completions, or unmasks them."""
    return (Write("IRQ_MASK", regs.pack("IRQ_MASK", event=event, completion=completion)),)


def set_cq(
    address: int, size: int, *, queue: int = 0, coalesce: int = 1, timeout: int = 0, page: int = 0
) -> tuple[Write | Wait, ...]:
    """Enables a completion queue of 2 to the power of ``size`` entries, and waits until it has
    room. The queue's doorbell is in the doorbell page ``page`` too, unless that is 0.
    """
    enable = regs.pack("CQ_ENABLE", enable=1, page=page)
    return (
        *moderate(coalesce, timeout, queue=queue),
        *_write("CQ", BASE=address, SIZE=size, ENABLE=enable, COMMIT=1),
        RESTARTED,
    )


def disable_cq(queue: int = 0) -> tuple[Write | Wait, ...]:
    """Disables a completion queue, and waits until the device uses its ring no more."""
    return (*_write("CQ", INDEX=queue, ENABLE=0, COMMIT=1), RESTARTED)


def take(
    consumer: int, *, queue: int = 0, arm: bool = False, page: int = 0
) -> tuple[Write, ...]:
    """Gives back the entries before ``consumer``; with ``arm``, others may interrupt.

    ``page`` is as in :func:`ring_send`.
    """
    doorbell = regs.pack("CQ_DOORBELL", consumer=consumer & 0xFFFF, queue=queue, arm=arm)
    return (Write("CQ_DOORBELL", doorbell, page),)


# -- SCTP -----------------------------------------------------------------------------------------


def set_association(move: Move, *, first: int, count: int, number: int = 0) -> tuple[Write, ...]:
    """Replaces an entry of the association table.

    Parameters
    ----------
    move
        The entry's slot and key.
    first, count, number
        The first DDP Stream of the association, how many SCTP streams are DDP Streams, and the
        association's number.
    """
    key = move.key
    ends = {
        f"{end}{k}": address >> 32 * k & _HALF
        for end, address in (("SRC", key.source), ("DST", key.destination))
        for k in range(4)
    }
    return _write(
        "ASSOC",
        **ends,
        PORTS=regs.pack("ASSOC_PORTS", source=key.source_port, destination=key.destination_port),
        TAG=key.tag,
        FLAGS=regs.pack("ASSOC_FLAGS", valid=1, v6=key.v6, number=number),
        STREAMS=regs.pack("ASSOC_STREAMS", first=first, count=count),
        SLOT=regs.pack("ASSOC_SLOT", way=move.way, slot=move.slot),
        COMMIT=1,
    )


def clear_association(way: int, slot: int) -> tuple[Write, ...]:
    """Empties an entry of the association table."""
    where = regs.pack("ASSOC_SLOT", way=way, slot=slot)
    return _write("ASSOC", FLAGS=0, SLOT=where, COMMIT=1)


def tell_session(
    stream: int, function: Function, tsn: int | None = None, *, taken: bool = False
) -> tuple[Write | Wait, ...]:
    """Gives a stream's session a command, and waits for the answer.

    Parameters
    ----------
    stream, function
        The DDP Stream, and the command: see the register SESSION_FUNCTION.
    tsn
        With FORGET, PAST and an Initiate: chunks of the peer up to this TSN are old.
    taken
        The answer must be that the message may be sent.
    """
    mask = regs.pack("SESSION_ANSWER", busy=1, taken=taken)
    return (
        *(() if tsn is None else (Write("SESSION_TSN", tsn),)),
        *_write("SESSION", STREAM=stream, FUNCTION=function, COMMAND=1),
        Wait("SESSION_ANSWER", mask, regs.pack("SESSION_ANSWER", taken=taken)),
    )


def forget_sessions(streams: int) -> list[Write | Wait]:
    """Lets all streams, of which there are ``streams``, forget their sessions."""
    return [step for each in range(streams) for step in tell_session(each, Function.FORGET, 0)]


# -- everything -----------------------------------------------------------------------------------


def clear_tables(
    *, stags: int, streams: int, associations: int = 0, sends: bool = False, responds: bool = False
) -> list[Write | Wait]:
    """Takes a device over: removes associations, disables streams, and revokes all Steering Tags.

    With ``associations``, every stream forgets its session last. Otherwise the Initiates that wait
    for an answer would count for the next association with the same number, and keep its Initiates
    out. In a device that ``sends`` this closes the send rings, and in one that ``responds`` the
    slots of Read Requests. The other parameters are sizes of tables.
    """
    steps: list[Write | Wait] = []
    if associations:
        steps.append(Write("ASSOC_FLAGS", 0))
        for way in range(WAYS):
            for slot in range(1 << slot_bits(associations)):
                where = regs.pack("ASSOC_SLOT", way=way, slot=slot)
                steps += _write("ASSOC", SLOT=where, COMMIT=1)
    steps.append(Write("STREAM_FLAGS", 0))
    for number in range(streams):
        steps += _write("STREAM", INDEX=number, COMMIT=1)
    rings = [Write("SEND_RING_COMMIT", 1)] * sends + [Write("RESPONSE_COMMIT", 1)] * responds
    steps += [Write("SEND_RING_SIZE", 0)] * sends + [Write("RESPONSE_SLOTS", 0)] * responds
    for number in range(streams if rings else 0):
        steps += Write("SEND_STREAM", number), *rings
    for index in range(stags):
        steps += revoke_stag(index << 8)[:-1]
    steps.append(REVOKED)
    return [*steps, *forget_sessions(streams if associations else 0)]
