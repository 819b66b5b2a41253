"""The network below SCTP: frames, IP headers, and the associations that packets belong to."""
