// Simulates the RNIC's surroundings in C++, for ddp_rnic.sim.engines.compiled. One call simulates
// many cycles.
//
// In each cycle this file sets the inputs, lets the design settle with the clock low, looks at the
// handshakes, and raises the clock. Verilator stores ports as little-endian words, so a beat can be
// copied unchanged.
//
// A run (sim_new, sim_add, sim_run) carries operations out to their end, and plays the host itself.
// They come in pieces, and what is done is dropped, so that a run of any length takes little memory.
// A live simulation (sim_live) has no end: its host is another program, which calls a function for
// each register access, each packet and each stretch of time.

#include "Vtop.h"
#include "Vtop___024root.h"
#include "verilated.h"
#if VM_TRACE
#include "verilated_vcd_c.h"
#endif
#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

double sc_time_stamp() { return 0; }

// Vtop::eval() calls this function with locks around it. A direct call takes a tenth of the time.
void Vtop___024root___eval(Vtop___024root *);

namespace {

constexpr uint64_t N = sizeof(std::remove_reference_t<decltype(Vtop::m_axi_cq_wdata)>);
constexpr uint64_t PAGE = 4096;
constexpr uint64_t AHEAD = 256;   // beats of write data taken before their address
constexpr uint64_t BURSTS = 256;  // addresses taken before their data
constexpr uint64_t PATIENCE = 50000;
constexpr uint64_t ENTRY = 32;    // octets of a completion
constexpr uint64_t QUEUES = 17;   // most completion queues, that of SCTP's owner included
constexpr uint64_t UNSEEN = 20;   // cycles until STATUS takes account of an accepted beat
constexpr uint64_t LEFT = 64;     // operations, of which a cycle does fewer

enum Kind : uint32_t {
    PACKET, FRAME, WRITE, DRAIN, AWAIT, PAUSE, RESUME, POLL, WAIT, MEANWHILE, STORE
};
enum Status : uint32_t { EVENT = 1, IDLE = 2, COMPLETION = 4 };
constexpr uint32_t ARM = 1u << 31;  // of CQ_DOORBELL

// sim/engines/compiled.py declares the same structures in numpy.
struct Operation {
    uint32_t kind;
    uint32_t a, b, c;  // a packet: stream, sequence, error; a frame: c is its error;
                       // WRITE: register, value, strobes; POLL: register, mask, value;
                       // STORE: lower and upper half of the bus address
    uint64_t offset, length;  // a packet, frame or STORE: its octets; a register access: offset is the
                              // expected response; AWAIT: offset is the number of completions;
                              // WAIT, MEANWHILE: offset is a number of cycles; MEANWHILE: length is
                              // the number of operations right after it that run aside
};
struct Settings {
    uint32_t source, write, response, exceptions, completions, registers;  // of 65536
    uint64_t stretch, latency, seed;
    uint64_t base;  // bus address of memory's first octet
    uint64_t mutant;
    uint64_t outstanding;  // write bursts of a port that may wait for their response
    uint64_t silence;      // cycles of work in the design that no port shows
    // The rings lie one after another, each with this many entries, and belong to these queues.
    // Without rings both numbers are 0.
    uint64_t ring, entries, rings;
    uint32_t queue[QUEUES];
    uint32_t phase_octet, phase_bit;
    uint32_t status, event_pop, event[9], doorbell, counters;
    uint32_t counter[32];
};
struct Range { uint64_t start, stop; };
// A waveform to be written: the file, the parts of the design that it shows, separated by spaces
// (none: all), and the cycles.
struct Waves { const char *path, *scopes; Range cycles; };
struct Write { uint64_t cycle, address; };
struct Burst { uint64_t cycle, address, beats; };
struct Taken { uint64_t first, last; };
struct Event { uint32_t word[9]; };
struct Fpdu { uint32_t stream, sequence; uint64_t first, last, offset, length, record; };
struct Exception { uint32_t stream, sequence, reason, unused; uint64_t offset, length; };
struct Completion { uint8_t octets[ENTRY]; };
// live: a piece of the host's memory
struct Window { uint64_t first, stop; uint8_t *octets; };

constexpr uint64_t mask(uint64_t octets) { return octets >= 64 ? ~0ull : (1ull << octets) - 1; }

struct Address {
    uint64_t address; uint32_t length; uint8_t size, burst;
    bool operator!=(const Address &o) const {
        return address != o.address || length != o.length || size != o.size || burst != o.burst;
    }
};
struct Data {
    uint8_t data[N]; uint64_t strobes; bool last;
    bool operator!=(const Data &o) const {
        return memcmp(data, o.data, N) || strobes != o.strobes || last != o.last;
    }
};
struct Output {
    uint8_t data[N]; uint64_t keep, user, record = 0; uint32_t stream; bool last;
    bool operator!=(const Output &o) const {
        return memcmp(data, o.data, N) || keep != o.keep || user != o.user ||
               record != o.record || stream != o.stream || last != o.last;
    }
};
struct Pending { uint64_t address, beats; bool fault; };
struct Response { uint64_t due; uint8_t code; };
struct ReadBurst { uint64_t address, beats, due; uint32_t id; };
// The ID of all reads of rings. AXI4 answers the reads of one ID in the order of their addresses.
constexpr uint32_t RINGS = 0;

// The values that a channel showed while it was held up. It must show them in the next cycle, too.
template <typename T> struct Held { bool held = false; T shown; };

// The sides and bus channels that idle at random, each for itself.
enum Idler {
    SOURCE, AW, W, B, CQ_AW, CQ_W, CQ_B, EXCEPTIONS, COMPLETIONS, AR, R, FPDUS, SENT_FRAMES,
    REGISTER_AW, REGISTER_W, REGISTER_B, REGISTER_R, IDLERS
};

// The signals of an AXI4 write port of the RNIC.
struct Pins {
    CData &awready, &wready, &bvalid, &bresp;
    const CData &awvalid, &awlen, &awsize, &awburst, &wvalid, &wlast, &bready;
    const QData &awaddr;
    const std::remove_reference_t<decltype(Vtop::m_axi_cq_wstrb)> &wstrb;
    const void *wdata;
};
#define PINS(top, port) { \
    top.port##_awready, top.port##_wready, top.port##_bvalid, top.port##_bresp, \
    top.port##_awvalid, top.port##_awlen, top.port##_awsize, top.port##_awburst, \
    top.port##_wvalid, top.port##_wlast, top.port##_bready, top.port##_awaddr, top.port##_wstrb, \
    &top.port##_wdata }

// The bus and the exception stream of a device that receives: the design's ports, if it has them.
// Otherwise they are signals that stay 0.
template <typename Top, typename = void> struct Receiving {
    CData m_axi_awready, m_axi_wready, m_axi_bvalid, m_axi_bresp, m_axi_bid, m_axis_exc_tready;
    const CData m_axi_awvalid = 0, m_axi_awlen = 0, m_axi_awsize = 0, m_axi_awburst = 0,
                m_axi_wvalid = 0, m_axi_wlast = 0, m_axi_bready = 0, m_axis_exc_tvalid = 0,
                m_axis_exc_tlast = 0;
    const SData m_axis_exc_tid = 0;
    const QData m_axi_awaddr = 0, m_axis_exc_tuser = 0, m_axis_exc_tkeep = 0;
    const std::remove_reference_t<decltype(Top::m_axi_cq_wstrb)> m_axi_wstrb = 0;
    const uint8_t m_axi_wdata[N] = {}, m_axis_exc_tdata[N] = {};
    Receiving &in(Top &) { return *this; }
};
template <typename Top> struct Receiving<Top, std::void_t<decltype(Top::m_axis_exc_tdata)>> {
    Top &in(Top &top) { return top; }
};

// The port for packets: none, unless the design has one.
template <typename Top, typename = void> struct PacketPort {
    static constexpr bool EXISTS = false;
    explicit PacketPort(Top &) {}
    void show(const uint8_t *, uint64_t, bool, uint16_t, uint64_t) {}
    void offer(bool) {}
    bool ready() const { return false; }
};
template <typename Top>
struct PacketPort<Top, std::void_t<decltype(Top::s_axis_tdata)>> {
    static constexpr bool EXISTS = true;
    Top &top;
    explicit PacketPort(Top &top) : top(top) {}
    void show(const uint8_t *octets, uint64_t keep, bool last, uint16_t stream, uint64_t user) {
        memcpy(&top.s_axis_tdata, octets, N);
        top.s_axis_tkeep = keep; top.s_axis_tlast = last;
        top.s_axis_tid = stream; top.s_axis_tuser = user;
    }
    void offer(bool valid) { top.s_axis_tvalid = valid; }
    bool ready() const { return top.s_axis_tready; }
};

// The port for Ethernet frames: none, unless the design has one.
template <typename Top, typename = void> struct FramePort {
    static constexpr bool EXISTS = false;
    explicit FramePort(Top &) {}
    void show(const uint8_t *, uint64_t, bool, bool) {}
    void offer(bool) {}
    bool ready() const { return false; }
};
template <typename Top>
struct FramePort<Top, std::void_t<decltype(Top::s_axis_eth_tdata)>> {
    static constexpr bool EXISTS = true;
    Top &top;
    explicit FramePort(Top &top) : top(top) {}
    void show(const uint8_t *octets, uint64_t keep, bool last, bool error) {
        memcpy(&top.s_axis_eth_tdata, octets, N);
        top.s_axis_eth_tkeep = keep; top.s_axis_eth_tlast = last; top.s_axis_eth_tuser = error;
    }
    void offer(bool valid) { top.s_axis_eth_tvalid = valid; }
    bool ready() const { return top.s_axis_eth_tready; }
};

// The ports of a device that sends: none, unless the design is one.
template <typename Top, typename = void> struct SendPorts {
    static constexpr bool EXISTS = false;
    explicit SendPorts(Top &) {}
    void begin() {}
    void read_taken() {}
};
template <typename Top>
struct SendPorts<Top, std::void_t<decltype(Top::m_axi_araddr)>> {
    static constexpr bool EXISTS = true;
    Top &top;
    explicit SendPorts(Top &top) : top(top) {}
    void begin() {
        top.m_axi_arready = top.m_axi_rvalid = 0;
    }
    void read_taken() { top.m_axi_rvalid = 0; }
    Address address() const {
        return {top.m_axi_araddr, top.m_axi_arlen, top.m_axi_arsize, top.m_axi_arburst};
    }
};

// A port from which FPDUs or frames leave: none, unless the design has one.
#define LEAVING_PORT(Port, port) \
    template <typename Top, typename = void> struct Port { \
        static constexpr bool EXISTS = false; \
        explicit Port(Top &) {} \
        void offer(bool) {} \
        bool valid() const { return false; } \
        bool ready() const { return false; } \
        Output now() const { return {}; } \
    }; \
    template <typename Top> struct Port<Top, std::void_t<decltype(Top::port##_tuser[2])>> { \
        static constexpr bool EXISTS = true; \
        Top &top; \
        explicit Port(Top &top) : top(top) {} \
        void offer(bool ready) { top.port##_tready = ready; } \
        bool valid() const { return top.port##_tvalid; } \
        bool ready() const { return top.port##_tready; } \
        Output now() const { \
            Output now; \
            memcpy(now.data, &top.port##_tdata, N); \
            now.keep = top.port##_tkeep; now.user = top.port##_tuser[0]; \
            now.record = top.port##_tuser[1] | uint64_t(top.port##_tuser[2]) << 32; \
            now.stream = top.port##_tid; now.last = top.port##_tlast; \
            return now; \
        } \
    };
LEAVING_PORT(FpduPort, m_axis)
LEAVING_PORT(SentFramePort, m_axis_eth)

// What has left a port so far.
struct Left {
    const char *port;
    int idler;
    std::vector<Fpdu> packets;
    std::vector<uint8_t> octets;
    bool inside = false;
    Held<Output> held;
};

// The port that selects a mutant: none, unless the design has mutants.
template <typename Top, typename = void> struct MutantPort {
    static void select(Top &, uint64_t) {}
};
template <typename Top>
struct MutantPort<Top, std::void_t<decltype(Top::mutant)>> {
    static void select(Top &top, uint64_t mutant) { top.mutant = mutant; }
};

// A write port, with the bursts that are under way on it.
struct Port {
    const char *aw, *w;
    int idler;  // its first channel
    Pins pins;
    std::deque<Pending> bursts;
    std::deque<Data> ahead;
    std::deque<Response> responses;
    uint64_t outstanding = 0;  // bursts whose address was taken, but whose response was not
    Held<Address> held_address; Held<Data> held_data;
};

struct Sim {
    VerilatedContext context;
    Vtop top{&context, "top"};
#if VM_TRACE
    std::unique_ptr<VerilatedVcdC> trace;
    Range traced{};  // cycles
#endif
    // The operations that are not done, with some before them, and the octets of them all.
    std::vector<Operation> operations;
    std::vector<uint8_t> octets;
    uint64_t count = 0, dropped = 0;  // of operations: how many are here, and how many were
    bool more = false;                // further operations will be added
    uint8_t *memory; uint64_t size;
    Settings settings;
    std::vector<Range> faults;

    uint64_t cycle = 0, progress = 0, random;
    std::string message;
    bool finished = false;

    // live: the register access and the packets that the host asked for
    bool live = false, recorded = true, asking = false, answered = false, asked_write = false;
    uint32_t asked_address = 0, asked_value = 0;
    uint8_t answer = 0;
    std::map<uint64_t, Window> windows;  // by their first address; none touches another
    Window latest{};                     // the one that took the last octet

    // packets and frames: one at a time
    PacketPort<Vtop> packets{top};
    FramePort<Vtop> frames{top};
    Receiving<Vtop> ports;
    decltype(ports.in(top)) receiving = ports.in(top);
    SendPorts<Vtop> sending{top};
    uint64_t operation = 0, at = 0, waited = 0;
    bool offered = false;
    // operations that run aside: the index of the next one, the index after the last one, and the
    // cycle in which they begin
    uint64_t aside = 0, aside_end = 0, due = 0;
    // bus writes
    Port placing{"m_axi_aw", "m_axi_w", AW, PINS(receiving, m_axi)};
    Port completing{"m_axi_cq_aw", "m_axi_cq_w", CQ_AW, PINS(top, m_axi_cq)};
    // completions of each ring: written by the RNIC, taken by the host, given back; and all taken
    uint64_t issued[QUEUES] = {}, consumed[QUEUES] = {}, returned[QUEUES] = {}, all = 0;
    bool paused = false, giving = false;
    // the completion under way, its ring, and a mask of its octets
    Completion entry; uint64_t under = 0; uint32_t filled = 0;
    std::vector<uint64_t> when[QUEUES];  // the cycle in which each entry was written
    // exception stream
    bool inside = false;
    uint64_t user = 0;
    Held<Output> held_output;
    // reads: bursts of which beats are missing, in the order of their addresses; and FPDUs
    std::vector<ReadBurst> reading;
    Held<Address> held_read_address;
    Left left[2] = {{"m_axis", FPDUS}, {"m_axis_eth", SENT_FRAMES}};
    // registers
    enum { Idle, Writing, Written, Reading, Read } access = Idle;
    enum { Nothing, State, EventWord, EventPop, Host, Polled, Doorbell, Counter, Asked } purpose = Nothing;
    uint32_t accessed = 0, word = 0;
    uint64_t asked = 0;  // the operation that was under way as the access began
    bool inside_packet = false;  // a packet had been taken in part for some time as it began
    uint64_t *served = nullptr;  // the index that the access advances: operation or aside
    bool address_done = false, data_done = false, draining = false;
    bool address_waits = false, data_waits = false;  // not shown to the RNIC yet
    Held<uint64_t> held_write, held_read;
    bool interrupted = false, heard = false;
    // STATUS said that nothing is in flight, and nothing has come in since.
    bool quiet = false;
    // For each idler: the cycle of its next draw, and the result of its last one.
    uint64_t until[IDLERS] = {};
    bool idle[IDLERS] = {};
    Event event;

    std::vector<Write> writes, stray;
    std::vector<Burst> addresses, read_bursts;
    std::vector<uint64_t> responses, delivered, interrupts, polled;
    std::vector<Completion> completions;
    std::vector<Taken> taken;
    std::vector<Event> events;
    std::vector<Exception> exceptions;
    std::vector<uint8_t> exception_octets;
    std::vector<uint32_t> counters;

    // Returns true if the idler ``which`` idles in this cycle, with a probability in units of
    // 1/65536. Each draw holds for 1 to ``stretch`` cycles.
    bool idles(int which, uint64_t probability) {
        if (!probability) return false;
        if (cycle >= until[which]) {
            const uint64_t drawn = draw();
            idle[which] = (drawn & 0xffff) < probability;
            until[which] = cycle + 1 + (drawn >> 16) % settings.stretch;
        }
        return idle[which];
    }

    void fail(const char *format, ...) {
        if (!message.empty()) return;
        char text[400];
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(text, sizeof text, format, arguments);
        va_end(arguments);
        message = text;
    }

    void step(bool clock) {
        top.clk = clock;
#if !VM_TRACE
        Vtop___024root___eval(top.rootp);
#else
        top.eval();  // this call also notes that there is something to trace
        if (trace && cycle >= traced.start && cycle < traced.stop) trace->dump(context.time());
        context.timeInc(5);
#endif
    }

    // Adds operations, whose offsets are those into these octets.
    void add(const Operation *added, uint64_t number, const uint8_t *from, uint64_t length) {
        const uint64_t done = aside < aside_end ? std::min(operation, aside) : operation;
        if (2 * done >= count) drop(done);
        const uint64_t base = octets.empty() ? 0 : octets.size() - N;
        octets.resize(base);
        octets.insert(octets.end(), from, from + length);
        octets.resize(base + length + N);  // a whole beat is copied even where a packet ends
        operations.insert(operations.end(), added, added + number);
        for (uint64_t k = count; k < operations.size(); k++)
            if (has_octets(operations[k])) operations[k].offset += base;
        count = operations.size();
    }

    static bool has_octets(const Operation &o) {
        return o.kind == PACKET || o.kind == FRAME || o.kind == STORE;
    }

    // Drops the first operations, which are done, and their octets.
    void drop(uint64_t done) {
        uint64_t next = done;
        while (next < count && !has_octets(operations[next])) next++;
        const uint64_t gone =
            next < count ? operations[next].offset : octets.empty() ? 0 : octets.size() - N;
        octets.erase(octets.begin(), octets.begin() + gone);
        operations.erase(operations.begin(), operations.begin() + done);
        for (Operation &each : operations)
            if (has_octets(each)) each.offset -= gone;
        count -= done; dropped += done;
        operation -= done; asked -= done; aside -= done; aside_end -= done;
    }

    // Sets all inputs. The design starts in the state that a reset leaves.
    void begin() {
        top.rst = 0;
        MutantPort<Vtop>::select(top, settings.mutant);
        receiving.m_axis_exc_tready = 0;
        packets.offer(false);
        frames.offer(false);
        sending.begin();
        for (const Port *port : {&placing, &completing}) {
            const Pins &pins = port->pins;
            pins.awready = pins.wready = pins.bvalid = pins.bresp = 0;
        }
        receiving.m_axi_bid = 0; top.m_axi_cq_bid = 0;
        top.s_axil_awvalid = 0; top.s_axil_wvalid = 0; top.s_axil_arvalid = 0;
        top.s_axil_awprot = 0; top.s_axil_arprot = 0; top.s_axil_wstrb = 15;
        top.s_axil_bready = 1; top.s_axil_rready = 1;
        top.eval();
        step(0);
        step(1);
    }

    uint64_t draw() {
        random ^= random << 13; random ^= random >> 7; random ^= random << 17;
        return random * 0x2545F4914F6CDD1Dull;
    }

    bool faulty(uint64_t address, uint64_t strobes) const {
        const uint64_t start = address + __builtin_ctzll(strobes);
        const uint64_t stop = address + 64 - __builtin_clzll(strobes);
        for (const Range &range : faults)
            if (start < range.stop && range.start < stop) return true;
        return false;
    }

    void take_address(Port &port, const Address &a) {
        const uint64_t start = a.address & -N, octets = (a.length + 1ull) * N;
        if ((1ull << a.size) != N || a.burst != 1)
            fail("%s: the write burst at %#llx has AWSIZE %u and AWBURST %u,"
                 " but must be incrementing with full beats",
                 port.aw, (unsigned long long)a.address, a.size, a.burst);
        if (start % PAGE + octets > PAGE)
            fail("%s: the write burst of %llu octets at %#llx crosses a 4 KiB boundary", port.aw,
                 (unsigned long long)octets, (unsigned long long)a.address);
        if (++port.outstanding > settings.outstanding)
            fail("%s: %llu bursts wait for their response, but the configuration allows %llu",
                 port.aw, (unsigned long long)port.outstanding,
                 (unsigned long long)settings.outstanding);
        if (&port == &placing) {
            if (recorded) addresses.push_back({cycle, a.address, a.length + 1ull});
        } else if (!settings.entries && !live) {
            fail("%s: a completion is written to %#llx, but there is no ring", port.aw,
                 (unsigned long long)a.address);
        }
        port.bursts.push_back({start, a.length + 1ull, false});
    }

    void take_data(Port &port, const Data &d) {
        Pending &burst = port.bursts.front();
        if (d.last != (burst.beats == 1))
            fail("%s: WLAST is %d but %llu beats of the burst are left, at %#llx", port.w, d.last,
                 (unsigned long long)burst.beats - 1, (unsigned long long)burst.address);
        if (quiet) fail("%s: data comes although STATUS said nothing is in flight", port.w);
        if (d.strobes) {
            const bool fault = faulty(burst.address, d.strobes);
            if (fault) burst.fault = true;
            if (&port == &placing) place(burst.address, d, fault);
            else if (!live) {
                const uint64_t first = burst.address + __builtin_ctzll(d.strobes);
                if (!fault || in_rings(first)) gather(burst.address, d);
            }
            else if (!fault) store(burst.address, d);
        }
        burst.address += N;
        if (--burst.beats == 0) {
            if (&port == &completing && !live) finish_completion(burst.fault);
            else if (&port == &completing && recorded) delivered.push_back(cycle);
            // SLVERR or DECERR.
            const uint8_t code = burst.fault ? 2 + (burst.address / N & 1) : 0;
            port.responses.push_back({cycle + settings.latency + 1, code});
            port.bursts.pop_front();
        }
    }

    void place(uint64_t address, const Data &d, bool fault) {
        if (recorded) writes.push_back({cycle, address});
        const uint64_t start = address + __builtin_ctzll(d.strobes);
        const uint64_t stop = address + 64 - __builtin_clzll(d.strobes);
        if (start < settings.ring + settings.rings * settings.entries * ENTRY &&
            settings.ring < stop)
            fail("m_axi_w: the write at %#llx touches the completion ring",
                 (unsigned long long)start);
        if (!fault) store(address, d);
    }

    // -- completions ------------------------------------------------------------------------------

    bool in_rings(uint64_t address) const {
        return address - settings.ring < settings.rings * settings.entries * ENTRY;
    }

    // For completion n of a ring, counted from 0: its entry, that entry's bus address, and its
    // phase.
    uint64_t slot(uint64_t n) const { return n & (settings.entries - 1); }
    uint64_t place_of(uint64_t ring, uint64_t n) const {
        return settings.ring + (ring * settings.entries + slot(n)) * ENTRY;
    }
    bool phase_of(uint64_t n) const { return !(n & settings.entries); }
    bool phase(const uint8_t *octets) const {
        return octets[settings.phase_octet] >> settings.phase_bit & 1;
    }

    // Collects the octets of a completion. They reach memory together, as a cache line does, so the
    // host never sees a part of a completion.
    void gather(uint64_t address, const Data &d) {
        const uint64_t start = address + __builtin_ctzll(d.strobes);
        if (!filled) {
            under = in_rings(start) ? (start - settings.ring) / (settings.entries * ENTRY) : 0;
        }
        const uint64_t place = place_of(under, issued[under]);
        for (uint64_t k = 0; k < N; k++) {
            if (!(d.strobes >> k & 1)) continue;
            const uint64_t at = address + k - place;
            if (at >= ENTRY || filled >> at & 1) {
                fail("m_axi_cq_w: completion %llu is written to %#llx, but its entry is at %#llx",
                     (unsigned long long)issued[under], (unsigned long long)(address + k),
                     (unsigned long long)place);
                return;
            }
            entry.octets[at] = d.data[k];
            filled |= 1u << at;
        }
    }

    void finish_completion(bool fault) {
        const unsigned long long number = issued[under];
        if (!message.empty()) return;  // there may be no ring
        if (fault && !filled) return;  // of a queue that has no ring
        if (filled != mask(ENTRY))
            fail("m_axi_cq_w: completion %llu is incomplete: only octets of mask %#x are written",
                 number, filled);
        if (issued[under] - returned[under] >= settings.entries)
            fail("m_axi_cq_w: completion %llu overwrites one that the host has not given back",
                 number);
        if (phase(entry.octets) != phase_of(issued[under]))
            fail("m_axi_cq_w: completion %llu has the wrong phase", number);
        if (!fault) {
            memcpy(host(place_of(under, issued[under])), entry.octets, ENTRY);
            when[under][slot(issued[under])] = cycle;
        }
        issued[under]++;
        filled = 0;
    }

    // Returns the host's memory at a bus address.
    uint8_t *host(uint64_t address) const { return memory + (address - settings.base); }

    // Returns true if the host has a completion of a ring to take.
    bool completed(uint64_t ring) const {
        return phase(host(place_of(ring, consumed[ring]))) == phase_of(consumed[ring]);
    }
    // Returns the first ring with a completion that the host takes, or the number of rings.
    uint64_t first_completed() const {
        uint64_t ring = 0;
        while (ring < settings.rings && (paused || !completed(ring))) ring++;
        return ring;
    }
    bool completed_one() const { return first_completed() < settings.rings; }

    void take_completion() {
        const uint64_t ring = first_completed();
        uint64_t &number = consumed[ring];
        Completion one;
        memcpy(one.octets, host(place_of(ring, number)), ENTRY);
        completions.push_back(one);
        delivered.push_back(when[ring][slot(number)]);
        number++;
        all++;
        progress = cycle;
    }

    void store(uint64_t address, const Data &d) {
        if (live) { store_live(address, d); return; }
        const uint64_t bus = address;
        address -= settings.base;
        const bool inside = address < size && size - address >= N;
        if (inside && d.strobes == mask(N)) { memcpy(memory + address, d.data, N); return; }
        bool outside = false;
        for (uint64_t k = 0; k < N; k++) {
            if (!(d.strobes >> k & 1)) continue;
            if (inside || (address < size && size - address > k)) memory[address + k] = d.data[k];
            else outside = true;
        }
        if (outside) stray.push_back({cycle, bus});
    }

    // Stores a beat in the host's memory. A write to any octet outside that memory is an error.
    void store_live(uint64_t address, const Data &d) {
        if (address >= latest.first && address + N <= latest.stop && d.strobes == mask(N)) {
            memcpy(latest.octets + (address - latest.first), d.data, N);
            return;
        }
        for (uint64_t k = 0; k < N; k++) {
            if (!(d.strobes >> k & 1)) continue;
            const uint64_t at = address + k;
            if (at < latest.first || at >= latest.stop) {
                auto after = windows.upper_bound(at);
                if (after == windows.begin() || std::prev(after)->second.stop <= at) {
                    fail("the RNIC writes the octet at %#llx, where the host has no memory",
                         (unsigned long long)at);
                    return;
                }
                latest = std::prev(after)->second;
            }
            latest.octets[at - latest.first] = d.data[k];
        }
    }

    void take_output(const Output &o) {
        const uint64_t octets = __builtin_popcountll(o.keep);
        if (!octets || o.keep != mask(octets) || (octets != N && !o.last))
            fail("exception stream: TKEEP is %#llx on a beat that is%s the last",
                 (unsigned long long)o.keep, o.last ? "" : " not");
        if (!inside) {
            user = o.user;
            exceptions.push_back({o.stream, uint32_t(o.user), uint32_t(o.user >> 32), 0,
                                  exception_octets.size(), 0});
        } else if (exceptions.back().stream != o.stream || user != o.user) {
            fail("exception stream: TID or TUSER changes inside a packet of stream %u", o.stream);
        }
        exception_octets.insert(exception_octets.end(), o.data, o.data + octets);
        exceptions.back().length += octets;
        inside = !o.last;
    }

    template <typename T> void held_up(const char *channel, Held<T> &held, bool valid, bool ready,
                                       const T &now) {
        if (held.held && !valid) fail("%s: VALID falls before READY came", channel);
        else if (held.held && now != held.shown) fail("%s: payload changes before READY came", channel);
        held.held = valid && !ready;
        if (held.held) held.shown = now;
    }

    void start(bool write, uint32_t address, uint32_t value, decltype(purpose) why) {
        accessed = address; purpose = why; asked = operation;
        inside_packet = at && !taken.empty() && cycle - taken.back().first > UNSEEN;
        access = write ? Writing : Reading;
        if (write) {
            top.s_axil_awaddr = address; top.s_axil_wdata = value; top.s_axil_wstrb = 15;
            address_waits = data_waits = true;
            address_done = data_done = false;
            quiet = false;
        } else {
            top.s_axil_araddr = address; top.s_axil_arvalid = 1;
        }
    }

    // Runs the next operations as far as they concern only the host, and stops before any other.
    void next_operation() {
        if (aside < aside_end && cycle < due) progress = cycle;
        while (operation < count) {
            const Operation &o = operations[operation];
            switch (o.kind) {
            case AWAIT: if (all < o.offset) return; break;
            case WAIT:
                if (waited++ < o.offset) { progress = cycle; return; }
                waited = 0;
                break;
            case STORE:
                memcpy(host(o.a | uint64_t(o.b) << 32), octets.data() + o.offset, o.length);
                break;
            case PAUSE: paused = true; break;
            case RESUME: paused = quiet = false; break;
            case MEANWHILE:
                if (aside < aside_end) return;
                due = cycle + o.offset;
                aside = operation + 1;
                aside_end = aside + o.length;
                operation += o.length;
                break;
            default: return;
            }
            operation++;
            progress = cycle;
        }
        paused = false;
    }

    // Starts the host's next register access. It is called while no access is under way.
    void next_access() {
        if (live) {
            if (asking) start(asked_write, asked_address, asked_value, Asked);
            asking = false;
            return;
        }
        if (operation == count && !draining) {
            // At the end everything is drained. Then the host reads all counters.
            if (counters.size() < settings.counters)
                start(false, settings.counter[counters.size()], 0, Counter);
            else
                finished = true;
            return;
        }
        // An interrupt stays while the host leaves completions in the ring. ``heard`` lets other
        // accesses come in between.
        if (top.irq && !heard) {
            start(false, settings.status, 0, State);
            return;
        }
        heard = false;
        for (uint64_t ring = 0; ring < settings.rings; ring++) {
            const uint64_t owed = consumed[ring] - returned[ring];
            if (!owed || !(giving || 4 * owed >= settings.entries)) continue;
            returned[ring] = consumed[ring];
            start(true, settings.doorbell,
                  ARM | settings.queue[ring] << 16 | (consumed[ring] & 0xffff), Doorbell);
            return;
        }
        if (aside < aside_end && cycle >= due) {
            serve_register(aside);
        } else if (operation == count || operations[operation].kind == DRAIN) {
            start(false, settings.status, 0, State);
        } else {
            serve_register(operation);
        }
        giving = false;
    }

    void serve_register(uint64_t &which) {
        const Operation &o = operations[which];
        served = &which;
        if (o.kind == WRITE) { start(true, o.a, o.b, Host); top.s_axil_wstrb = o.c; }
        else if (o.kind == POLL) start(false, o.a, 0, Polled);
    }

    void completed(uint8_t response, uint32_t value) {
        if (purpose == Asked) {
            access = Idle;
            answer = response; asked_value = value; answered = true;
            return;
        }
        if (access == Read && accessed == settings.status && value & IDLE && inside_packet && at)
            fail("STATUS says that nothing is in flight, but the RNIC has only a part of a packet");
        const bool hosts = purpose == Host || purpose == Polled;
        const uint64_t expected = hosts ? operations[*served].offset : 0;
        if (response != expected)
            fail("%s of register %#05x got response %u",
                 access == Written ? "the write" : "the read", accessed, response);
        access = Idle;
        switch (purpose) {
        case State:
            if (value & EVENT) { word = 0; start(false, settings.event[0], 0, EventWord); break; }
            heard = true;
            if (value & COMPLETION && top.irq) giving = true;
            if (value & IDLE && asked == operation) drained();
            break;
        case EventWord:
            event.word[word++] = value;
            if (word < 9) start(false, settings.event[word], 0, EventWord);
            else { events.push_back(event); start(true, settings.event_pop, 1, EventPop); }
            break;
        case Host: ++*served; progress = cycle; break;
        case Polled:
            if ((value & operations[*served].b) == operations[*served].c) {
                polled.push_back(cycle);
                ++*served;
                progress = cycle;
            }
            break;
        case Counter: counters.push_back(value); break;
        default: progress = cycle; break;
        }
    }

    // STATUS says that the RNIC is idle. The drain ends if, in addition, the host has no completion
    // to take and no entries to give back, for which further completions may wait.
    void drained() {
        if (operation < count && operations[operation].kind != DRAIN) return;
        if (aside < aside_end || completed_one()) return;
        for (uint64_t ring = 0; ring < settings.rings; ring++)
            if (consumed[ring] != returned[ring]) { giving = true; return; }
        if (operation == count) draining = false;
        else operation++;
        quiet = true;
        progress = cycle;
    }

    // Sets the register port's inputs for this cycle. Address and data may come in different
    // cycles.
    void offer_registers() {
        const uint64_t probability = settings.registers;
        if (address_waits && !idles(REGISTER_AW, probability)) {
            top.s_axil_awvalid = 1;
            address_waits = false;
        }
        if (data_waits && !idles(REGISTER_W, probability)) {
            top.s_axil_wvalid = 1;
            data_waits = false;
        }
        top.s_axil_bready = !idles(REGISTER_B, probability);
        top.s_axil_rready = !idles(REGISTER_R, probability);
    }

    void registers() {
        const uint64_t read = uint64_t(top.s_axil_rresp) << 32 | top.s_axil_rdata;
        held_up("s_axil_b", held_write, top.s_axil_bvalid, top.s_axil_bready,
                uint64_t(top.s_axil_bresp));
        held_up("s_axil_r", held_read, top.s_axil_rvalid, top.s_axil_rready, read);
        if (access == Writing) {
            if (top.s_axil_awvalid && top.s_axil_awready) address_done = true;
            if (top.s_axil_wvalid && top.s_axil_wready) data_done = true;
        }
        if (access == Reading && top.s_axil_arready) address_done = true;
    }

    // After the clock edge: takes back the address and data that the RNIC accepted.
    void registers_after(bool written, uint8_t write_response, bool read, uint8_t read_response,
                         uint32_t value) {
        switch (access) {
        case Writing:
            if (address_done) top.s_axil_awvalid = 0;
            if (data_done) top.s_axil_wvalid = 0;
            if (address_done && data_done) { access = Written; address_done = data_done = false; }
            break;
        case Written:
            if (written) completed(write_response, 0);
            break;
        case Reading:
            if (address_done) { top.s_axil_arvalid = 0; access = Read; address_done = false; }
            break;
        case Read:
            if (read) completed(read_response, value);
            break;
        default: break;
        }
    }

    // Sets a write port's inputs for this cycle.
    void offer(Port &port) {
        const Pins &pins = port.pins;
        pins.awready = port.bursts.size() < BURSTS && !idles(port.idler, settings.write);
        pins.wready = (!port.bursts.empty() || port.ahead.size() < AHEAD) &&
                      !idles(port.idler + 1, settings.write);
        if (!pins.bvalid && !port.responses.empty() && port.responses.front().due <= cycle &&
            !idles(port.idler + 2, settings.response)) {
            pins.bvalid = 1;
            pins.bresp = port.responses.front().code;
        }
    }

    // Looks at the handshakes of a write port. Returns true if the RNIC took a response.
    bool serve(Port &port) {
        const Pins &pins = port.pins;
        if (pins.awvalid || port.held_address.held) {
            const Address now{pins.awaddr, pins.awlen, pins.awsize, pins.awburst};
            held_up(port.aw, port.held_address, pins.awvalid, pins.awready, now);
            if (pins.awvalid && pins.awready) { take_address(port, now); progress = cycle; }
        }
        if (pins.wvalid || port.held_data.held) {
            Data now;
            memcpy(now.data, pins.wdata, N);
            now.strobes = pins.wstrb; now.last = pins.wlast;
            held_up(port.w, port.held_data, pins.wvalid, pins.wready, now);
            if (pins.wvalid && pins.wready) {
                progress = cycle;
                if (port.ahead.empty() && !port.bursts.empty()) take_data(port, now);
                else port.ahead.push_back(now);
            }
        }
        while (!port.ahead.empty() && !port.bursts.empty()) {
            take_data(port, port.ahead.front());
            port.ahead.pop_front();
        }
        if (!pins.bvalid || !pins.bready) return false;
        port.responses.pop_front();
        port.outstanding--;
        progress = cycle;
        return true;
    }

    // -- a device that sends ----------------------------------------------------------------------

    void take_read(const Address &a, uint32_t id) {
        const uint64_t start = a.address & -N, octets = (a.length + 1ull) * N;
        if ((1ull << a.size) != N || a.burst != 1)
            fail("m_axi_ar: the read burst at %#llx has ARSIZE %u and ARBURST %u,"
                 " but must be incrementing with full beats",
                 (unsigned long long)a.address, a.size, a.burst);
        if (start % PAGE + octets > PAGE)
            fail("m_axi_ar: the read burst of %llu octets at %#llx crosses a 4 KiB boundary",
                 (unsigned long long)octets, (unsigned long long)a.address);
        for (const ReadBurst &each : reading)
            if (each.id == id && id != RINGS)
                fail("m_axi_ar: the ID %u is used for two bursts at the same time", id);
        if (quiet) fail("m_axi_ar: a read comes although STATUS said nothing is in flight");
        if (recorded) read_bursts.push_back({cycle, a.address, a.length + 1ull});
        reading.push_back({start, a.length + 1ull, cycle + settings.latency + 1, id});
    }

    // Reads a beat of the host's memory; in front of and after that, octets have any value.
    void read_beat(uint64_t address, uint8_t *beat) {
        if (live) { read_live(address, beat); return; }
        for (uint64_t k = 0; k < N; k++) {
            const bool inside = address + k - settings.base < size;
            beat[k] = inside ? *host(address + k) : 0xEE;
        }
    }

    // The same. A beat without any octet of that memory is an error.
    void read_live(uint64_t address, uint8_t *beat) {
        if (address < latest.first || address + N > latest.stop) {
            bool found = false;
            memset(beat, 0xEE, N);
            for (auto after = windows.lower_bound(address + N); after != windows.begin();) {
                const Window &each = (--after)->second;
                if (each.stop <= address) break;
                const uint64_t first = std::max(address, each.first);
                const uint64_t stop = std::min(address + N, each.stop);
                memcpy(beat + (first - address), each.octets + (first - each.first), stop - first);
                latest = each;
                found = true;
            }
            if (!found && !faulty(address, mask(N)))
                fail("the RNIC reads the octets at %#llx, where the host has no memory",
                     (unsigned long long)address);
            return;
        }
        memcpy(beat, latest.octets + (address - latest.first), N);
    }

    void take_packet(Left &left, const Output &o) {
        const uint64_t octets = __builtin_popcountll(o.keep);
        if (!octets || o.keep != mask(octets) || (octets != N && !o.last))
            fail("%s: TKEEP is %#llx on a beat that is%s the last",
                 left.port, (unsigned long long)o.keep, o.last ? "" : " not");
        if (quiet) fail("%s: a packet comes although STATUS said nothing is in flight", left.port);
        auto &packets = left.packets;
        if (!left.inside)
            packets.push_back(
                {o.stream, uint32_t(o.user), cycle, cycle, left.octets.size(), 0, o.record});
        else if (packets.back().stream != o.stream || packets.back().sequence != uint32_t(o.user) ||
                 packets.back().record != o.record)
            fail("%s: TID or TUSER changes inside a packet of stream %u", left.port, o.stream);
        left.octets.insert(left.octets.end(), o.data, o.data + octets);
        packets.back().length += octets;
        packets.back().last = cycle;
        left.inside = !o.last;
    }

    // Looks at the handshake of a port from which packets leave.
    template <typename Port> void serve_leaving(Left &left, const Port &port) {
        if (!port.valid() && !left.held.held) return;
        const Output now = port.now();
        held_up(left.port, left.held, port.valid(), port.ready(), now);
        if (port.valid() && port.ready()) { take_packet(left, now); progress = cycle; }
    }

    // Sets the inputs of the sending side for this cycle. A beat of a read may be of any burst that
    // is due and the first one of its ID, unless nothing is delayed.
    template <typename Top> void offer_sending(Top &top) {
        if constexpr (SendPorts<Top>::EXISTS) {
            top.m_axi_arready = reading.size() < BURSTS && !idles(AR, settings.write);
            if constexpr (FpduPort<Top>::EXISTS)
                FpduPort<Top>(top).offer(!idles(FPDUS, settings.exceptions));
            if constexpr (SentFramePort<Top>::EXISTS)
                SentFramePort<Top>(top).offer(!idles(SENT_FRAMES, settings.exceptions));
            if (top.m_axi_rvalid || reading.empty() || idles(R, settings.response)) return;
            size_t which = settings.response ? draw() % reading.size() : 0;
            if (reading[which].due > cycle) which = 0;
            for (size_t k = which; k-- > 0;)
                if (reading[k].id == reading[which].id) which = k;
            ReadBurst &burst = reading[which];
            if (burst.due > cycle) return;
            uint8_t beat[N];
            read_beat(burst.address, beat);
            memcpy(&top.m_axi_rdata, beat, N);
            top.m_axi_rid = burst.id;
            top.m_axi_rresp = faulty(burst.address, mask(N)) ? 2 + (burst.address / N & 1) : 0;
            top.m_axi_rlast = burst.beats == 1;
            top.m_axi_rvalid = 1;
            burst.address += N;
            if (--burst.beats == 0) reading.erase(reading.begin() + which);
        }
    }

    // Looks at the handshakes of the sending side. Returns true if the RNIC took a beat of a read.
    template <typename Top> bool serve_sending(Top &top) {
        if constexpr (SendPorts<Top>::EXISTS) {
            if (top.m_axi_arvalid || held_read_address.held) {
                const Address now = SendPorts<Top>(top).address();
                held_up("m_axi_ar", held_read_address, top.m_axi_arvalid, top.m_axi_arready, now);
                if (top.m_axi_arvalid && top.m_axi_arready) {
                    take_read(now, top.m_axi_arid);
                    progress = cycle;
                }
            }
            serve_leaving(left[0], FpduPort<Top>(top));
            serve_leaving(left[1], SentFramePort<Top>(top));
            if (top.m_axi_rvalid && top.m_axi_rready) { progress = cycle; return true; }
        }
        return false;
    }

    void one_cycle() {
        // The host.
        next_operation();
        if (completed_one() && !idles(COMPLETIONS, settings.completions)) take_completion();
        // The packet or frame.
        const bool packet =
            packets.EXISTS && operation < count && operations[operation].kind == PACKET;
        const bool frame =
            frames.EXISTS && operation < count && operations[operation].kind == FRAME;
        if ((packet || frame) && !offered && !idles(SOURCE, settings.source)) {
            const Operation &o = operations[operation];
            const uint64_t rest = o.length - at;
            const uint8_t *from = octets.data() + o.offset + at;
            const bool last = rest <= N, error = last && o.c;
            if (frame) {
                frames.show(from, mask(last ? rest : N), last, error);
            } else {
                packets.show(
                    from, mask(last ? rest : N), last, o.a, uint64_t(error) << 32 | o.b);
            }
            offered = true;
            quiet = false;
        }
        packets.offer(offered && !frame);
        frames.offer(offered && frame);
        offer(placing);
        offer(completing);
        receiving.m_axis_exc_tready = !idles(EXCEPTIONS, settings.exceptions);
        if (access == Idle) next_access();
        offer_registers();
        offer_sending(top);
        step(0);
        if (top.irq && !interrupted && recorded) interrupts.push_back(cycle);
        interrupted = top.irq;

        // Handshakes.
        if (offered && (frame ? frames.ready() : packets.ready())) {
            const Operation &o = operations[operation];
            if (at == 0) {
                if (!recorded) taken.clear();
                taken.push_back({cycle, cycle});
            }
            at += N;
            offered = false;
            progress = cycle;
            if (at >= o.length) { taken.back().last = cycle; at = 0; operation++; }
        }
        const bool placed = serve(placing), reported = serve(completing);
        const bool read_beat = serve_sending(top);
        if (placed && recorded) responses.push_back(cycle);
        if (receiving.m_axis_exc_tvalid || held_output.held) {
            Output now;
            memcpy(now.data, &receiving.m_axis_exc_tdata, N);
            now.keep = receiving.m_axis_exc_tkeep; now.user = receiving.m_axis_exc_tuser;
            now.stream = receiving.m_axis_exc_tid; now.last = receiving.m_axis_exc_tlast;
            held_up("m_axis_exc", held_output, receiving.m_axis_exc_tvalid, receiving.m_axis_exc_tready, now);
            if (receiving.m_axis_exc_tvalid && receiving.m_axis_exc_tready) {
                take_output(now);
                progress = cycle;
            }
        }
        registers();
        const bool written = top.s_axil_bvalid && top.s_axil_bready;
        const bool read = top.s_axil_rvalid && top.s_axil_rready;
        const uint8_t write_response = top.s_axil_bresp, read_response = top.s_axil_rresp;
        const uint32_t value = top.s_axil_rdata;

        step(1);
        if (placed) placing.pins.bvalid = 0;
        if (reported) completing.pins.bvalid = 0;
        if (read_beat) sending.read_taken();
        registers_after(written, write_response, read, read_response, value);
        cycle++;
    }

    const char *doing() const {
        if (access != Idle && purpose != State && purpose != Polled)
            return "a register access is under way";
        if (operation == count) return "everything is sent, but the RNIC is not idle";
        switch (operations[operation].kind) {
        case PACKET: return "the RNIC takes no beat of the packet";
        case FRAME: return "the RNIC takes no beat of the frame";
        case DRAIN: return "the RNIC does not become idle";
        case AWAIT: return paused ? "the host waits for completions that it does not take"
                                  : "the completions that the host waits for do not come";
        case POLL: return "the register that the host polls does not change";
        default: return "a register write is due";
        }
    }
};

}  // namespace

// Begins to write waves, or with a null pointer ends that. Only for a build with waves.
EXPORT void sim_trace(Sim *sim, const Waves *waves) {
#if VM_TRACE
    if (sim->trace) sim->trace->close();
    sim->trace.reset();
    if (!waves) return;
    sim->trace.reset(new VerilatedVcdC);
    sim->top.trace(sim->trace.get(), 99);
    std::istringstream scopes(waves->scopes);
    bool some = false;
    for (std::string scope; scopes >> scope; some = true) sim->trace->dumpvars(99, scope);
    if (some) sim->trace->dumpvars(1, "top");
    sim->traced = waves->cycles;
    sim->trace->open(waves->path);
    if (!sim->trace->isOpen()) sim->fail("cannot write waves to %s", waves->path);
#endif
}

EXPORT Sim *sim_new(uint8_t *memory, uint64_t size, const Settings *settings, const Range *faults,
                    uint64_t fault_count) {
    Sim *sim = new Sim;
    sim->memory = memory; sim->size = size; sim->settings = *settings;
    sim->faults.assign(faults, faults + fault_count);
    sim->random = settings->seed * 0x9E3779B97F4A7C15ull | 1;
    sim->draining = true;
    for (auto &each : sim->when) each.resize(settings->entries);
#if VM_TRACE
    sim->context.traceEverOn(true);
#endif
    sim->begin();
    return sim;
}

// Adds operations after all that were added, with their octets. ``more``: others will follow, and
// the simulation waits for them.
EXPORT void sim_add(Sim *sim, const Operation *operations, uint64_t count, const uint8_t *octets,
                    uint64_t length, int more) {
    sim->add(operations, count, octets, length);
    sim->more = more;
}

// Simulates at most ``cycles`` cycles, as long as enough operations are here. Returns 0 if
// operations are left, 1 at the end, 2 on failure, 3 if further operations have to be added.
EXPORT int sim_run(Sim *sim, uint64_t cycles) {
    const Settings &s = sim->settings;
    while (cycles-- && !sim->finished && sim->message.empty()) {
        if (sim->more && sim->operation + LEFT > sim->count) return 3;
        sim->one_cycle();
        if (!sim->live && sim->cycle - sim->progress > PATIENCE + s.latency + s.silence)
            sim->fail("nothing moved for %llu cycles: operation %llu of %llu, %s",
                      (unsigned long long)(sim->cycle - sim->progress),
                      (unsigned long long)(sim->dropped + sim->operation) + 1,
                      (unsigned long long)(sim->dropped + sim->count), sim->doing());
    }
    return sim->message.empty() ? sim->finished : 2;
}

// Starts a live simulation. It runs only during the calls below. ``recorded``: the cycles of all
// activity are kept for sim_list, which takes more memory with each beat.
EXPORT Sim *sim_live(const Settings *settings, int recorded) {
    Sim *sim = sim_new(nullptr, 0, settings, nullptr, 0);
    sim->live = true;
    sim->recorded = recorded;
    return sim;
}

// Returns the number of queued packets and frames that the RNIC has not taken completely.
EXPORT uint64_t sim_sending(Sim *sim) { return sim->count - sim->operation; }

// Accesses a register. ``value`` is the value to write, and afterwards the value read. Returns the
// response on the bus, or -1 on failure.
EXPORT int sim_access(Sim *sim, int write, uint32_t address, uint32_t *value) {
    sim->asked_write = write; sim->asked_address = address; sim->asked_value = *value;
    sim->asking = true;
    sim->answered = false;
    const uint64_t begun = sim->cycle;
    while (!sim->answered && sim->message.empty()) {
        sim->one_cycle();
        if (sim->cycle - begun > PATIENCE) sim->fail("register %#05x does not answer", address);
    }
    if (!sim->message.empty()) return -1;
    *value = sim->asked_value;
    return sim->answer;
}

// Writes registers: ``words`` has an address and a value for each. Returns the number of writes that
// the RNIC accepted. The first one that failed is the last one that was made.
EXPORT uint64_t sim_writes(Sim *sim, const uint32_t *words, uint64_t count) {
    for (uint64_t n = 0; n < count; n++) {
        uint32_t value = words[2 * n + 1];
        if (sim_access(sim, 1, words[2 * n], &value)) return n;
    }
    return count;
}

// Returns whether the RNIC reads the host's memory, or sends an FPDU or a frame.
EXPORT int sim_leaving(Sim *sim) {
    return !sim->reading.empty() || sim->left[0].inside || sim->left[1].inside;
}

// Returns the number of FPDUs (port 0) or frames (1) that have left completely: the first ones in
// sim_list.
EXPORT uint64_t sim_left(Sim *sim, int port) {
    return sim->left[port].packets.size() - sim->left[port].inside;
}

// Drops the first ``count`` of them.
EXPORT void sim_forget(Sim *sim, int port, uint64_t count) {
    auto &packets = sim->left[port].packets;
    auto &octets = sim->left[port].octets;
    const uint64_t gone = count < packets.size() ? packets[count].offset : octets.size();
    packets.erase(packets.begin(), packets.begin() + count);
    octets.erase(octets.begin(), octets.begin() + gone);
    for (Fpdu &each : packets) each.offset -= gone;
}

// Simulates at most ``cycles`` cycles, until there is an interrupt, or until the RNIC has taken the
// last of the packets and frames that are queued. Returns 0 if there is no interrupt, 1 if there is
// one, 2 on failure.
EXPORT int sim_wait(Sim *sim, uint64_t cycles) {
    const bool sending = sim_sending(sim);
    while (cycles-- && !sim->top.irq && sim->message.empty()) {
        sim->one_cycle();
        if (sending && !sim_sending(sim)) break;
    }
    return sim->message.empty() ? sim->top.irq : 2;
}

// Gives the simulation ``length`` octets of host memory at a bus address. A null pointer takes the
// memory at this address away.
EXPORT void sim_map(Sim *sim, uint64_t address, uint8_t *octets, uint64_t length) {
    if (octets) sim->windows[address] = {address, address + length, octets};
    else sim->windows.erase(address);
    sim->latest = {};
}

// Drops the cycles of bus and streams, the completions, and the packets of the exception stream
// that sim_list has returned. The first writes of a long run take more memory than later ones.
EXPORT void sim_forget_cycles(Sim *sim) {
    std::vector<Write>().swap(sim->writes);
    sim->addresses.clear();
    sim->responses.clear();
    sim->completions.clear();
    sim->delivered.clear();
    sim->taken.erase(sim->taken.begin(), sim->taken.end() - (sim->at != 0));
    sim->exceptions.erase(sim->exceptions.begin(), sim->exceptions.end() - sim->inside);
    if (!sim->inside) {
        sim->exception_octets.clear();
        return;
    }
    uint64_t &offset = sim->exceptions.back().offset;
    sim->exception_octets.erase(sim->exception_octets.begin(),
                                sim->exception_octets.begin() + offset);
    offset = 0;
}

// From now on, writes to the addresses from ``start`` to ``stop`` get SLVERR or DECERR.
EXPORT void sim_fault(Sim *sim, uint64_t start, uint64_t stop) {
    sim->faults.push_back({start, stop});
}

EXPORT void sim_free(Sim *sim) {
#if VM_TRACE
    if (sim->trace) sim->trace->close();
#endif
    sim->top.final();
    delete sim;
}

EXPORT uint64_t sim_cycle(Sim *sim) { return sim->cycle; }
EXPORT uint64_t sim_operation(Sim *sim) { return sim->dropped + sim->operation; }
EXPORT const char *sim_message(Sim *sim) { return sim->message.c_str(); }

// Returns the address of one of a run's lists, and stores the list's number of items. A packet of
// the exception stream is an item once its last beat has come.
EXPORT const void *sim_list(Sim *sim, int which, uint64_t *items) {
#define LIST(number, list) case number: *items = sim->list.size(); return sim->list.data();
    switch (which) {
    LIST(0, writes) LIST(1, addresses) LIST(2, taken) LIST(3, stray) LIST(4, events)
    case 5: *items = sim->exceptions.size() - sim->inside; return sim->exceptions.data();
    LIST(6, exception_octets) LIST(7, counters) LIST(8, completions)
    LIST(9, delivered) LIST(10, responses) LIST(11, interrupts) LIST(12, polled)
    LIST(13, left[0].packets) LIST(14, left[0].octets) LIST(15, read_bursts)
    LIST(16, left[1].packets) LIST(17, left[1].octets)
    }
    *items = 0;
    return nullptr;
}
