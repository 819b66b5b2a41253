"""The golden model: what RFC 5041 says, bytes in, typed events out.

Nothing here knows time, threads or sockets. ``ddp`` is RFC 5041, ``mpa`` RFC 5044 and RFC 6581,
``tcp`` what a board takes of RFC 9293, ``sctp`` RFC 9260 as far as RFC 5043 needs it, ``rdmap`` the
little of RFC 5040 that decides where octets land. Codecs are written here with ``struct``, apart
from the gateware's, so that the two cannot share a mistake.
"""
