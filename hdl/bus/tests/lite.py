"""Provides an AXI4-Lite manager for testbenches."""


def manager(ctx, bus, *, wait=0):
    """Returns functions that write and read.

    ``write(address, value, strb=15, *, data_first=False)`` returns the response, ``read(address)``
    data and response. A response waits for ``wait`` cycles.
    """

    async def taken(channel):
        if wait:
            await ctx.tick().repeat(wait)
        ctx.set(channel.ready, 1)
        (payload,) = await ctx.tick().sample(channel.payload).until(channel.valid)
        ctx.set(channel.ready, 0)
        return payload

    async def write(address, value, strb=15, *, data_first=False):
        ctx.set(bus.aw.payload.addr, address)
        ctx.set(bus.w.payload, {"data": value, "strb": strb})
        left = {bus.w: 0, bus.aw: 3 * data_first}
        while left:
            for channel, delay in left.items():
                ctx.set(channel.valid, delay == 0)
            samples = [channel.valid & channel.ready for channel in left]
            _, _, *gone = await ctx.tick().sample(*samples)
            for channel, done in zip(list(left), gone, strict=True):
                left[channel] = max(0, left[channel] - 1)
                if done:
                    ctx.set(channel.valid, 0)
                    del left[channel]
        return int((await taken(bus.b)).resp)

    async def read(address):
        ctx.set(bus.ar.payload.addr, address)
        ctx.set(bus.ar.valid, 1)
        await ctx.tick().until(bus.ar.ready)
        ctx.set(bus.ar.valid, 0)
        answer = await taken(bus.r)
        return answer.data, int(answer.resp)

    return write, read
