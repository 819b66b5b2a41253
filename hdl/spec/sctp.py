"""Declares DDP over SCTP as data: chunks (RFC 9260 sections 3.2 and 3.3.1), RFC 5043 section 5.2.

The control messages include the enhanced ones of RFC 6581 section 7.

The golden model (``sim/model/sctp.py``) follows RFC 5043 exactly. The device may differ from it in
these ways, each permitted by the sentence that is quoted:

* **Window.** With ``W = RnicConfig.window``, the device takes a DDP-SSN that is less than W ahead
  of the next one that its stream delivers, and, however far ahead, one whose predecessors were all
  taken. Any other DDP-SSN less than 32768 ahead is OUTSIDE: the device keeps nothing of the chunk,
  the host does not acknowledge it, and the peer's SCTP sends it again. RFC 9260 section 6.2: "The
  dropped DATA chunk(s) MUST NOT be included in the SACK chunk, as they were not accepted."
* **Repetitions.** A chunk that the network repeats has the same TSN (RFC 9260 section 6.2). The
  device remembers two kinds of TSN: that of the message with DDP-SSN 0 of the present session, to
  compare with other control messages of that DDP-SSN; and, in each of a stream's W slots, that of
  the last item whose DDP-SSN belongs to the slot, whether or not the item waited there. A used
  DDP-SSN with the same TSN is a DUPLICATE; with another TSN it is ILLEGAL. If the device no longer
  remembers a Segment's TSN, or the DDP-SSN is 32768 or more ahead, the record is DUPLICATE too,
  and nothing is placed. The host, whose SCTP knows every TSN that it received, then ends the
  session with ABORT if that TSN is new. RFC 5043 section 6.1: "the DDP Stream Session MUST be
  terminated", without a time. (The device always remembers the TSN of a Terminate, because nothing
  may follow it.)
* **Earlier sessions.** The present session began with a TSN: that of the peer's Initiate, or the
  one that the host gave with its own. A chunk whose TSN is not after it is a DUPLICATE as well.
  Section 6: "Data Chunks from one DDP Stream Session are never carried over to the next session."
  An Initiate with DDP-SSN 0 that is ILLEGAL moves that TSN to its own; otherwise its repetition,
  which finds the session ABORTED, would open a new session.
  TSNs are compared serially (RFC 9260 section 1.6). Therefore the host moves the TSN of each of its
  streams forward, with PAST, before 2^31 TSNs of the association have arrived.
* **Overtaking the answer.** A Segment, or a Terminate with a DDP-SSN other than 0, that arrives
  while the state is INITIATE_SENT is HELD, each time it arrives, and belongs to no session until
  the host hands it back. Section 10: "The SCTP sender is not obligated to transmit unordered Data
  Chunks in the order presented", and so neither is a receiver to take them in that order.
* **Fragments.** A fragment of a message with PPID 16 or 17 and the Unordered option is HELD, each
  time it arrives, with DDP-SSN 0 in its record, whatever the state of its stream. Section 9: "SCTP
  data chunk fragmentation MUST NOT be used unless the alternative is IP fragmentation."
* **Chunks that end a packet.** A type from 15 to 127 is none of RFC 9260, and its highest bit is 0.
  Section 3.2 has a receiver discard such a chunk "and all further chunks" of the packet. INIT, INIT
  ACK and SHUTDOWN COMPLETE must be alone in their packet (section 3), and chunks after an ABORT
  "will be ignored by the receiver" (section 3.3.7). The device places no chunk after one of these,
  and forwards each one to the host as CHUNK; the host discards them. Chunks before it are handled
  as ever.
* **Illegal chunks** have the Reason MALFORMED if they are no DDP message, and SEQUENCE otherwise.
  An Initiate, an Accept or a Reject with a DDP-SSN other than 0 is ILLEGAL when it arrives: no
  pattern of sections 6.2 to 6.4 has one, whatever precedes it. A Terminate changes the State when
  it is delivered, once everything before it is in memory; an event may still show the State before
  that.
* **Enhanced sessions.** An Enhanced Initiate is answered by an Enhanced Accept, an Enhanced Reject,
  a Reject or a Terminate; an Initiate by an Accept, a Reject or a Terminate. Each other answer is
  ILLEGAL. A Reject fits both, because RFC 6581 section 7 demands the Enhanced Reject only "for a
  configuration that would have been accepted for unenhanced DDP stream session negotiation". The
  device reads no IRD and no ORD: it forwards a message whose Private Data has fewer than the four
  octets of both, too, and the ULP decides.
"""

from enum import IntEnum, IntFlag

COMMON_HEADER = 12  #: octets of a packet before its first chunk, RFC 9260 section 3.1
DATA_HEADER = 16  #: octets of a DATA chunk before its user data, section 3.3.1
SSN = 2  #: octets of a DDP-SSN, RFC 5043 section 5.2.1
FUNCTION = 2  #: octets of a Function Code, section 5.2.3
MOST_PRIVATE = 512  #: octets of Private Data, section 5.2.3
#: Octets of IRD and ORD, the first ones of the Private Data of an Enhanced Initiate or an Enhanced
#: Accept (RFC 6581 section 9).
ENHANCED_DATA = 4
MOST_CHUNKS = 448  #: of a packet; a packet with this many chunks goes whole to the host
#: A device that sends keeps the headers of an association in this many octets. The octets after the
#: DDP-SSN follow them, so that each field of SCTP has its fixed place. The headers of link, IP and
#: UDP end before octet PATH_HEADERS, and begin at a multiple of four.
PATH_AREA = 128
PATH_HEADERS = PATH_AREA - COMMON_HEADER - DATA_HEADER - SSN
PACKET_OCTETS = 1 << 14  #: octets of packets that such a device keeps while it computes a CRC
LONGEST_BODY = PACKET_OCTETS - 1024  #: octets of the longest chunk after the DDP-SSN


class ChunkType(IntEnum):
    """Chunk types that the gateware handles; all others are forwarded to the host."""

    DATA = 0


#: INIT, INIT ACK, ABORT and SHUTDOWN COMPLETE: no chunk that follows one in its packet counts.
LAST_OF_PACKET = 1, 2, 6, 14


class DataFlag(IntFlag):
    """Flags of a DATA chunk; all three are set on an unordered message that is whole."""

    ENDING = 1
    BEGINNING = 2
    UNORDERED = 4


class Ppid(IntEnum):
    """Payload Protocol Identifiers."""

    SEGMENT = 16
    CONTROL = 17


class Function(IntEnum):
    """Function Codes of DDP Stream Session Control, and three commands.

    Codes 1 to 4 are those of RFC 5043 section 5.2.3, codes 5 to 7 those of RFC 6581 section 7.

    The host gives the commands to a stream's session. FORGET: the association is gone. ABORT: the
    session ends. PAST: every chunk up to a TSN has arrived, and the session stays as it is.
    """

    FORGET = 0
    INITIATE = 1
    ACCEPT = 2
    REJECT = 3
    TERMINATE = 4
    ENHANCED_INITIATE = 5
    ENHANCED_ACCEPT = 6
    ENHANCED_REJECT = 7
    ABORT = 8
    PAST = 9


#: The messages that open a session, and those that establish it.
INITIATES = Function.INITIATE, Function.ENHANCED_INITIATE
ACCEPTS = Function.ACCEPT, Function.ENHANCED_ACCEPT


class State(IntEnum):
    """The state of a stream's session, seen from this end."""

    CLOSED = 0b000
    TERMINATE_SENT = 0b001
    TERMINATE_RECEIVED = 0b010
    #: An illegal chunk arrived. Every chunk is dropped until the next Initiate.
    ABORTED = 0b011
    # In the states above, an Initiate may open the next session; in those below, it may not.
    INITIATE_SENT = 0b100
    INITIATE_RECEIVED = 0b101
    #: An Initiate for which the host had no room: the host has to answer it with a Terminate.
    REFUSED = 0b110
    ESTABLISHED = 0b111


class Reason(IntEnum):
    """The reason for an event of a session."""

    #: A DATA chunk is no DDP message; the stream is aborted.
    MALFORMED = 0
    #: A message fits no legal sequence; the stream is aborted.
    SEQUENCE = 1
    #: A message follows the end of the session; the stream is aborted.
    EXCESS = 2
    #: An Initiate arrived while too many wait for an answer. The host must answer with a Terminate
    #: (RFC 5043 section 6.4).
    LIMIT = 3


class Diversion(IntEnum):
    """Values of ``reason`` on the exception stream that are no error of RFC 5041 section 7.2."""

    FRAME = 0x800  #: a whole frame for no known association; its stream and sequence number are 0
    #: A chunk other than DATA, or any chunk after one that ends its packet; its stream is the
    #: association, its sequence number 0.
    CHUNK = 0x900
    DATA = 0x901  #: a DATA chunk that is no DDP message; its association and its TSN
    #: A DDP Segment, or Terminate, that overtook the answer to this end's Initiate; its association
    #: and its TSN. The host keeps the chunk, and hands it back in a packet of its own once the
    #: answer has arrived.
    EARLY = 0x902
    #: A fragment of a DDP message; its association and its TSN. The host reassembles the message
    #: and hands it back as one chunk (RFC 9260 section 6.9).
    FRAGMENT = 0x903
    CONTROL = 0xA00  #: a DDP Stream Session Control message; its DDP Stream and its TSN
