"""Provides the memory's side of AXI4 writes for testbenches."""


class Responses:
    """Answers write bursts in order, each ``latency`` cycles after its address and its last beat.

    In a share ``stall`` of the cycles, no response begins. ``refused`` has the numbers of the
    bursts that get SLVERR; ``answered`` has the cycle of each response's transfer.
    """

    def __init__(self, channel, *, latency, stall, refused, rng):
        self.channel, self.latency, self.stall, self.rng = channel, latency, stall, rng
        self.refused = refused
        self.due, self.answered = [], []
        self.valid = False

    def step(self, ctx, cycle, bursts, ready):
        """Runs a cycle, after ``bursts`` bursts are complete; ``ready`` is the channel's sample."""
        self.due += [cycle + self.latency] * (bursts - len(self.due))
        if self.valid and ready:
            self.answered.append(cycle)
            self.valid = False
        number = len(self.answered)
        if (not self.valid and number < len(self.due) and self.due[number] <= cycle
                and self.rng.random() >= self.stall):
            self.valid = True
            ctx.set(self.channel.payload.resp, 2 if number in self.refused else 0)
        ctx.set(self.channel.valid, self.valid)
