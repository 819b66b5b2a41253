"""Receives DDP segments from lower layer protocols: MPA, SCTP and, on boards, TCP below MPA."""
