"""Assembles all of a board that has no pins: the RNIC, its memory, Ethernet and the host link."""

from amaranth import *
from amaranth.lib import wiring
from amaranth.lib.cdc import FFSynchronizer, PulseSynchronizer
from amaranth.lib.wiring import In, Out

from ..bus.decode import AxiLiteDecoder, Endpoint
from ..bus.memory import PlacementMemory
from ..eth.mdio import GigabitOnly, Mdio
from ..eth.receive import FrameCrossing, FrameReceive
from ..eth.rgmii import GmiiOctet
from ..rnic import Rnic
from ..spec import board
from ..spec.config import RnicConfig
from ..spec.sctp import Diversion
from ..tcp.receiver import TcpReceiver
from .frames import OneByOne, ReceivedPacket, TransmitFrame
from .registers import BoardRegisters
from .uart import UartBridge, UartReceive, UartTransmit

__all__ = ["Device"]

#: IEEE 802.3 section 22.2.2.13: a period of MDC is at least 400 ns.
MDC = 2_500_000
#: Seconds until a PHY's reset is over and it accepts MDIO accesses: an RTL8211F needs 72 ms.
SETTLED = 0.1
#: RGMII 2.0 section 3.4.1: the link is up, and its clock has 125 MHz.
LINK_UP = 0b10_1
#: Seconds of silence after which an unfinished command of the host link is abandoned.
PATIENCE = 0.1


class Device(wiring.Component):
    """Contains an RNIC for a board: takes frames from a PHY, and serves the host through a UART.

    The host reaches memory and registers. If the RNIC sends, its frames go to the PHY, each once
    the host has taken the copy of the one before. There are three clock domains: ``sync``;
    ``eth_rx``, the PHY's receive clock; and ``eth_tx``, 125 MHz.

    Latency, Throughput: those of the parts. Reset: that of the RNIC; ``LINK_*`` counters are 0,
    memory stays. Errors: counted, in the registers of the board and the RNIC.

    Parameters
    ----------
    config : RnicConfig
        With SCTP, which may also send, or with MPA, which receives alone.
    memory_octets : int
        Octets of placement memory, a power of two.
    connections, window : int
        With MPA: those of :class:`~..tcp.receiver.TcpReceiver`.
    clock : int
        Frequency of ``sync`` in Hz.
    baud : int
        Rate of the host link.
    identifier : str
        Name of the board, in ASCII, that the host can read.

    Members
    -------
    rx : In(GmiiOctet()), link : In(4)
        Those of :class:`~..eth.rgmii.RgmiiReceive`, in ``eth_rx``.
    tx : Out(GmiiOctet())
        In ``eth_tx``.
    uart_rx : In(1), uart_tx : Out(1)
    mdc : Out(1), mdio : In(1), mdio_drive : Out(1), mdio_level : Out(1)
    received, active, event : Out(1)
        For LEDs: a frame arrives; the host link is in use; the RNIC's interrupt.
    up : Out(1)
        The link is up at 1000 Mb/s.
    """

    def __init__(self, config, *, memory_octets, clock, baud, connections=0, window=0,
                 identifier="ddp-rnic"):
        rnic = Rnic(config) if isinstance(config, RnicConfig) else None
        # A board has one port for frames: they are SCTP's, or TCP cuts FPDUs out of them.
        ports = {"packets", "frames"} & set(rnic.signature.members) if rnic else ()
        if len(ports) != 1:
            raise ValueError(
                f"Device configuration must be an RnicConfig with SCTP or MPA, not {config!r}")
        if "fpdus" in rnic.signature.members:
            raise ValueError("Device with MPA does not send: no TCP takes its FPDUs")
        if not memory_octets <= board.MEMORY.size:
            raise ValueError(
                f"Device memory must be at most {board.MEMORY.size} octets, not {memory_octets!r}")
        self.config, self._rnic = config, rnic
        self.memory_octets = memory_octets
        self._tcp = TcpReceiver(
            config.width, connections=connections, window=window,
            streams=config.streams) if "packets" in ports else None
        self.clock, self.baud = clock, baud
        self.identifier = identifier
        super().__init__({
            "rx": In(GmiiOctet()),
            "link": In(4),
            "tx": Out(GmiiOctet()),
            "uart_rx": In(1, init=1),
            "uart_tx": Out(1, init=1),
            "mdc": Out(1),
            "mdio": In(1, init=1),
            "mdio_drive": Out(1),
            "mdio_level": Out(1),
            "received": Out(1),
            "active": Out(1),
            "event": Out(1),
            "up": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        width = self.config.width
        m.submodules.rnic = rnic = self._rnic
        sends = self.config.transmit
        ids = rnic.signature.members["reads"].signature.ids if sends else 0
        m.submodules.memory = memory = PlacementMemory(width, self.memory_octets, ids=ids)
        m.submodules.registers = registers = BoardRegisters(
            self.identifier, tcp=self._tcp is not None, sends=sends)
        m.submodules.decoder = decoder = AxiLiteDecoder(board.windows_of(sends=sends))
        wiring.connect(m, rnic.bus, memory.bus)
        if sends:
            wiring.connect(m, rnic.reads, memory.reads)
        wiring.connect(m, rnic.completions, memory.completions)
        wiring.connect(m, decoder.rnic, rnic.control)
        wiring.connect(m, decoder.board, registers.bus)
        m.submodules.memory_end = end = Endpoint(
            board.MEMORY.size.bit_length() - 1, latency=3)
        wiring.connect(m, decoder.memory, end.bus)
        m.d.comb += [
            memory.address.eq(end.address),
            memory.write.eq(end.write),
            memory.data.eq(end.data),
            end.answer.eq(memory.answer),
            end.found.eq(memory.found),
            registers.id.eq(board.ID),
            registers.version.eq(board.VERSION),
            registers.cap_memory.eq(self.memory_octets),
            registers.cap_frame.eq(board.LONGEST),
            registers.cap_clock.eq(self.clock),
            registers.status[7].eq(rnic.irq),
            self.event.eq(rnic.irq),
        ]
        if sends:
            m.d.comb += memory.read.eq(end.read)
        self._host(m, decoder, registers)
        self._receive(m, rnic, registers)
        self._frames(m, rnic, decoder, registers)
        self._mdio(m, registers)
        return m

    def _counter(self, m, registers, name, event, *, domain="sync"):
        """Makes a counter register count the pulses of ``event``, of any clock domain."""
        if domain != "sync":
            m.submodules[name] = crossing = PulseSynchronizer(domain, "sync")
            m.d.comb += crossing.i.eq(event)
            event = crossing.o
        count = Signal(32, name=name)
        with m.If(event):
            m.d.sync += count.eq(count + 1)
        m.d.comb += getattr(registers, name).eq(count)
        return event

    def _host(self, m, decoder, registers):
        """Adds the host link."""
        m.submodules.uart_rx = receive = UartReceive(clock=self.clock, baud=self.baud)
        m.submodules.uart_tx = transmit = UartTransmit(clock=self.clock, baud=self.baud)
        m.submodules.bridge = bridge = UartBridge(patience=int(PATIENCE * self.clock))
        wiring.connect(m, receive.o, bridge.i)
        wiring.connect(m, bridge.o, transmit.i)
        wiring.connect(m, bridge.bus, decoder.bus)
        m.d.comb += [
            receive.line.eq(self.uart_rx),
            self.uart_tx.eq(transmit.line),
            bridge.broken.eq(receive.broken),
            self.active.eq(receive.o.valid),
        ]
        self._counter(m, registers, "host_errors", bridge.error)

    def _receive(self, m, rnic, registers):
        """Connects frames from the PHY to the RNIC, or to TCP."""
        m.submodules.receive = receive = DomainRenamer("eth_rx")(FrameReceive(self.config.width))
        m.submodules.crossing = crossing = FrameCrossing(
            self.config.width, domain="eth_rx", relaxed=self.config.relaxed)
        link = Signal(4)
        m.submodules.link = FFSynchronizer(self.link, link)
        wiring.connect(m, receive.o, crossing.i)
        if self._tcp is None:
            wiring.connect(m, crossing.o, rnic.frames)
        else:
            self._connections(m, crossing, rnic, registers)
        m.d.comb += [
            receive.i.eq(self.rx),
            registers.status[:4].eq(link),
            self.up.eq(link[:3] == LINK_UP),
        ]
        m.d.comb += self.received.eq(self._counter(
            m, registers, "link_frames", receive.good, domain="eth_rx"))
        self._counter(m, registers, "link_damaged", receive.damaged, domain="eth_rx")
        self._counter(m, registers, "link_unstarted", receive.unstarted, domain="eth_rx")
        self._counter(m, registers, "link_dropped", crossing.dropped)

    def _connections(self, m, crossing, rnic, registers):
        """Adds TCP in front of the RNIC."""
        m.submodules.tcp = tcp = self._tcp
        wiring.connect(m, crossing.o, tcp.i)
        wiring.connect(m, tcp.packets, rnic.packets)
        select = registers.tcp_select
        write = tcp.write.payload
        with m.If(~tcp.write.valid):
            m.d.sync += [
                tcp.write.valid.eq(registers.tcp_write),
                write.index.eq(select[:8]), write.field.eq(select[8:]),
                write.word.eq(registers.tcp_word),
            ]
        with m.Elif(tcp.write.ready):
            m.d.sync += tcp.write.valid.eq(0)
        m.d.comb += [
            registers.cap_connections.eq(tcp.connections),
            registers.cap_tcp_window.eq(tcp.window),
            tcp.look.eq(select[:8]),
            registers.tcp_next.eq(tcp.next),
            registers.tcp_acknowledged.eq(tcp.peer.acknowledged),
            registers.tcp_state.eq(Cat(tcp.peer.window, tcp.broken, tcp.write.valid)),
        ]
        for name in ("taken", "host", "dropped", "lost"):
            self._counter(m, registers, f"tcp_{name}", getattr(tcp, name))

    def _frames(self, m, rnic, decoder, registers):
        """Connects packets of the exception stream, and frames of the host that are to be sent."""
        width, sends = self.config.width, self.config.transmit
        m.submodules.packet = packet = ReceivedPacket(rnic.exceptions.payload.shape())
        m.submodules.frame = frame = TransmitFrame(width=width * sends, domain="eth_tx")
        m.submodules.packet_end = packet_end = Endpoint(
            board.RECEIVED.size.bit_length() - 1, latency=3)
        m.submodules.frame_end = frame_end = Endpoint(
            board.TRANSMIT.size.bit_length() - 1, latency=1)
        if self._tcp is None:
            wiring.connect(m, rnic.exceptions, packet.i)
        else:
            m.submodules.one_by_one = both = OneByOne(self.config.width)
            wiring.connect(m, rnic.exceptions, both.i[0])
            wiring.connect(m, both.o, packet.i)
            frames = self._tcp.frames
            m.d.comb += [
                both.i[1].valid.eq(frames.valid),
                both.i[1].payload.beat.eq(frames.payload),
                both.i[1].payload.reason.eq(Diversion.FRAME),
                frames.ready.eq(both.i[1].ready),
            ]
        wiring.connect(m, decoder.received, packet_end.bus)
        wiring.connect(m, decoder.transmit, frame_end.bus)
        writes = Signal()
        m.d.sync += writes.eq(packet_end.write.any() | (writes & ~packet_end.read))
        reads = Signal()
        m.d.sync += reads.eq(frame_end.read)
        m.d.comb += [
            packet.address.eq(packet_end.address),
            packet_end.answer.eq(packet.answer),
            packet_end.found.eq(~writes),
            packet.pop.eq(registers.received_pop),
            registers.status[4].eq(packet.waits),
            *(getattr(registers, f"received_{name}").eq(getattr(packet, name))
              for name in ("length", "stream", "sequence", "reason")),
            frame.address.eq(frame_end.address),
            frame.write.eq(frame_end.write),
            frame.data.eq(frame_end.data),
            frame_end.found.eq(~reads),
            frame.length.eq(registers.transmit_length),
            frame.send.eq(registers.transmit_send),
            registers.status[5].eq(frame.busy),
            self.tx.eq(frame.o),
        ]
        self._counter(m, registers, "link_sent", frame.sent)
        if sends:
            self._sent(m, rnic, decoder, registers, frame)

    def _sent(self, m, rnic, decoder, registers, frame):
        """Connects the frames of the RNIC with the PHY, and their copies with the host."""
        m.submodules.sent = copy = ReceivedPacket(rnic.sent_frames.payload.shape())
        m.submodules.sent_end = end = Endpoint(board.SENT.size.bit_length() - 1, latency=3)
        wiring.connect(m, decoder.sent, end.bus)
        writes = Signal()
        m.d.sync += writes.eq(end.write.any() | (writes & ~end.read))
        frames = rnic.sent_frames
        m.d.comb += [
            # A beat goes both ways in the same cycle.
            frames.ready.eq(copy.i.ready & frame.frames.ready),
            copy.i.valid.eq(frames.valid & frame.frames.ready),
            copy.i.payload.eq(frames.payload),
            frame.frames.valid.eq(frames.valid & copy.i.ready),
            frame.frames.payload.eq(frames.payload.beat),
            copy.address.eq(end.address),
            end.answer.eq(copy.answer),
            end.found.eq(~writes),
            copy.pop.eq(registers.sent_pop),
            registers.status[8].eq(copy.waits),
            registers.sent_length.eq(copy.length),
            registers.sent_stream.eq(copy.stream),
            registers.sent_sequence.eq(copy.sequence),
            Cat(registers.sent_record, registers.sent_offset).eq(copy.record),
        ]

    def _mdio(self, m, registers):
        """Connects the PHY's registers: the board writes them once, then the host has access."""
        half = -(-self.clock // (2 * MDC))
        m.submodules.mdio = mdio = Mdio(divisor=max(2 * half, 8))
        m.submodules.gigabit = gigabit = GigabitOnly(wait=int(SETTLED * self.clock))
        with m.If(gigabit.busy):
            m.d.comb += [
                gigabit.ready.eq(~mdio.busy),
                mdio.write.eq(gigabit.write),
                mdio.register.eq(gigabit.register),
                mdio.phy.eq(gigabit.phy),
                mdio.value.eq(gigabit.value),
            ]
        with m.Else():
            m.d.comb += [
                mdio.read.eq(registers.mdio_read),
                mdio.write.eq(registers.mdio_write),
                mdio.register.eq(registers.mdio_address),
                mdio.phy.eq(registers.mdio_address[8:]),
                mdio.value.eq(registers.mdio_data),
            ]
        m.d.comb += [
            registers.mdio_result.eq(Cat(mdio.result, mdio.silent)),
            registers.status[6].eq(mdio.busy | gigabit.busy),
            self.mdc.eq(mdio.mdc),
            mdio.line.eq(self.mdio),
            self.mdio_drive.eq(mdio.drive),
            self.mdio_level.eq(mdio.level),
        ]
