"""DDP over SCTP as data: chunks (RFC 9260 sections 3.2 and 3.3.1), RFC 5043 section 5.2.

Where the device may differ from the golden model (``sim/model/sctp.py``), which follows RFC 5043
exactly, and the sentences that permit it:

* **Window.** With ``W = RnicConfig.window``, the device takes a DDP-SSN that is less than W ahead
  of the next one that its stream delivers, and, however far ahead, one whose predecessors were all
  taken. Any other DDP-SSN less than 32768 ahead is OUTSIDE: nothing of it is kept, the host does
  not acknowledge it, and the peer's SCTP sends it again. RFC 9260 section 6.2: "The dropped DATA
  chunk(s) MUST NOT be included in the SACK chunk, as they were not accepted."
* **Repetitions.** What the network repeats has the same TSN (RFC 9260 section 6.2). The device
  keeps the TSN of the message with DDP-SSN 0 of the present session, for other control messages
  with that DDP-SSN, and, in each of a stream's W places, that of the last item whose DDP-SSN
  belongs there, whether or not the item waited there. A used DDP-SSN with the same TSN is a
  DUPLICATE; with another TSN it is ILLEGAL. Of a Segment whose TSN is not kept any more, or whose
  DDP-SSN is 32768 or more ahead, the record is DUPLICATE too, and nothing is placed; the host,
  whose SCTP knows every TSN that it received, then ends the session with ABORT if that TSN is
  new. RFC 5043 section 6.1: "the DDP Stream Session MUST be terminated", without a time. (The TSN
  of a Terminate is always kept: nothing may follow it.)
* **Earlier sessions.** What is not after the TSN with which the present session began, that of the
  peer's Initiate or that which came with this end's, is a DUPLICATE likewise. Section 6: "Data
  Chunks from one DDP Stream Session are never carried over to the next session." An Initiate with
  DDP-SSN 0 that is ILLEGAL moves that TSN to its own, so that its repetition, which would find
  the session ABORTED, opens none.
  TSNs are compared serially (RFC 9260 section 1.6), so before 2^31 TSNs of the association have
  come, the host moves the TSN of each of its streams on, with PAST.
* **Overtaking the answer.** A Segment, or a Terminate with another DDP-SSN than 0, that comes while
  the state is INITIATE_SENT is HELD, each time it comes, and counts for no session until the host
  hands it back. Section 10: "The SCTP sender is not obligated to transmit unordered Data Chunks in
  the order presented", and so neither is a receiver to take them in that order.
* **Fragments.** A fragment of a message with PPID 16 or 17 and the Unordered option is HELD, each
  time it comes, with DDP-SSN 0 in its record, whatever the state of its stream is. Section 9: "SCTP
  data chunk fragmentation MUST NOT be used unless the alternative is IP fragmentation."
* **Illegal chunks** have the Reason MALFORMED if they are no DDP message, and SEQUENCE otherwise.
  An Initiate, an Accept or a Reject with another DDP-SSN than 0 is ILLEGAL when it arrives: no
  pattern of sections 6.2 to 6.4 has one, whatever comes before it. A Terminate's turn changes the
  State once what came before it is in memory; an event may still tell of the State before that.
"""

from enum import IntEnum, IntFlag

COMMON_HEADER = 12  #: octets of a packet before its first chunk, RFC 9260 section 3.1
DATA_HEADER = 16  #: octets of a DATA chunk before its user data, section 3.3.1
SSN = 2  #: octets of a DDP-SSN, RFC 5043 section 5.2.1
MOST_CHUNKS = 448  #: of a packet; one with as many leaves whole, to the host


class ChunkType(IntEnum):
    """Chunk types that the gateware looks at; all others go to the host."""

    DATA = 0


class DataFlag(IntFlag):
    """Flags of a DATA chunk that tell a whole, unordered message."""

    ENDING = 1
    BEGINNING = 2
    UNORDERED = 4


class Ppid(IntEnum):
    """Payload Protocol Identifiers."""

    SEGMENT = 16
    CONTROL = 17


class Function(IntEnum):
    """Function Codes of DDP Stream Session Control (RFC 5043 section 5.2.3), and three commands of
    the host to a stream's session: FORGET says that the association is gone, ABORT ends the
    session, and PAST leaves the session as it is: all up to a TSN has come.
    """

    FORGET = 0
    INITIATE = 1
    ACCEPT = 2
    REJECT = 3
    TERMINATE = 4
    ABORT = 5
    PAST = 6


class State(IntEnum):
    """Where a stream's session is, seen from this end."""

    CLOSED = 0b000
    TERMINATE_SENT = 0b001
    TERMINATE_RECEIVED = 0b010
    #: Something illegal came. All is dropped until the next Initiate.
    ABORTED = 0b011
    # In the states above an Initiate may open the next session, in those below it may not.
    INITIATE_SENT = 0b100
    INITIATE_RECEIVED = 0b101
    #: An Initiate that the host has not got room for: it has to be answered with a Terminate.
    REFUSED = 0b110
    ESTABLISHED = 0b111


class Reason(IntEnum):
    """Why there is an event of a session."""

    #: A DATA chunk that is no DDP message; the stream is aborted.
    MALFORMED = 0
    #: A message fits no legal sequence; the stream is aborted.
    SEQUENCE = 1
    #: Something follows the end of the session; the stream is aborted.
    EXCESS = 2
    #: An Initiate came while too many wait for an answer. The host must answer it with a Terminate
    #: (RFC 5043 section 6.4).
    LIMIT = 3


class Diversion(IntEnum):
    """``reason`` of what leaves on the exception stream and is no error of RFC 5041 section 7.2."""

    FRAME = 0x800  #: a frame that is not ours, whole; its stream and sequence number are 0
    CHUNK = 0x900  #: a chunk other than DATA; its stream is the association, sequence number 0
    DATA = 0x901  #: a DATA chunk that is no DDP message; likewise, with its TSN
    #: A DDP Segment, or Terminate, that overtook the answer to this end's Initiate; its association
    #: and its TSN. The host keeps the chunk, and hands it back in a packet of its own once the
    #: answer has come.
    EARLY = 0x902
    #: A fragment of a DDP message; its association and its TSN. The host puts fragments together
    #: and hands the message back as one chunk (RFC 9260 section 6.9).
    FRAGMENT = 0x903
    CONTROL = 0xA00  #: a DDP Stream Session Control message; its DDP Stream and its TSN
