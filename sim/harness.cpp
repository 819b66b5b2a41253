// The RNIC's surroundings in C++, for ddp_rnic.sim.compiled: one call simulates many cycles.
//
// In each cycle the inputs are set, the design settles with the clock low, the handshakes are
// looked at, and the clock rises. Verilator stores ports as little-endian words, so that a beat is
// copied as it is.

#include "Vtop.h"
#include "verilated.h"
#if VM_TRACE
#include "verilated_vcd_c.h"
#endif
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

double sc_time_stamp() { return 0; }

namespace {

constexpr uint64_t N = sizeof(std::remove_reference_t<decltype(Vtop::s_axis_tdata)>);
constexpr uint64_t PAGE = 4096;
constexpr uint64_t AHEAD = 16;    // beats of write data taken before their address
constexpr uint64_t BURSTS = 256;  // addresses taken before their data
constexpr uint64_t PATIENCE = 50000;

enum Kind : uint32_t { PACKET, WRITE, DRAIN };

// These are numpy structures on the other side.
struct Operation { uint32_t kind, a, b, error; uint64_t offset, length; };
struct Settings {
    uint32_t source, write, response, exceptions;  // of 65536
    uint64_t latency, seed;
    uint32_t status, event_pop, event[9], counters;
    uint32_t counter[32];
};
struct Range { uint64_t start, stop; };
struct Write { uint64_t cycle, address; };
struct Burst { uint64_t cycle, address, beats; };
struct Taken { uint64_t first, last; };
struct Event { uint32_t word[9]; };
struct Exception { uint32_t stream, sequence; uint64_t offset, length; };

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
    uint8_t data[N]; uint64_t keep; uint32_t stream, sequence; bool last;
    bool operator!=(const Output &o) const {
        return memcmp(data, o.data, N) || keep != o.keep || stream != o.stream ||
               sequence != o.sequence || last != o.last;
    }
};
struct Pending { uint64_t address, beats; bool fault; };
struct Response { uint64_t due; uint8_t code; };

// What a channel showed while it was held up: it has to show the same in the next cycle.
template <typename T> struct Held { bool held = false; T shown; };

struct Sim {
    VerilatedContext context;
    Vtop top{&context, "top"};
#if VM_TRACE
    std::unique_ptr<VerilatedVcdC> trace;
#endif
    const Operation *operations; uint64_t count;
    const uint8_t *octets;
    uint8_t *memory; uint64_t size;
    Settings settings;
    std::vector<Range> faults;

    uint64_t cycle = 0, progress = 0, random;
    std::string message;
    bool finished = false;

    // packets
    uint64_t operation = 0, at = 0;
    bool offered = false;
    // bus writes
    std::deque<Pending> bursts;
    std::deque<Data> ahead;
    std::deque<Response> responses;
    Held<Address> held_address; Held<Data> held_data; Held<Output> held_output;
    // exception stream
    bool inside = false;
    // registers
    enum { Idle, Writing, Written, Reading, Read } access = Idle;
    enum { Nothing, Status, EventWord, EventPop, Host, Counter } purpose = Nothing;
    uint32_t accessed = 0, word = 0;
    bool address_done = false, data_done = false, draining = false;
    Event event;

    std::vector<Write> writes, stray;
    std::vector<Burst> addresses;
    std::vector<Taken> taken;
    std::vector<Event> events;
    std::vector<Exception> exceptions;
    std::vector<uint8_t> exception_octets;
    std::vector<uint32_t> counters;

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
        top.eval();
#if VM_TRACE
        if (trace) trace->dump(context.time());
        context.timeInc(5);
#endif
    }

    // The design starts as a reset leaves it.
    void begin() {
        top.rst = 0;
        top.s_axis_tvalid = 0; top.m_axis_exc_tready = 0;
        top.m_axi_awready = 0; top.m_axi_wready = 0; top.m_axi_bvalid = 0; top.m_axi_bid = 0;
        top.s_axil_awvalid = 0; top.s_axil_wvalid = 0; top.s_axil_arvalid = 0;
        top.s_axil_awprot = 0; top.s_axil_arprot = 0; top.s_axil_wstrb = 15;
        top.s_axil_bready = 1; top.s_axil_rready = 1;
        step(0);
        step(1);
    }

    // Four draws of 16 bits.
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

    void take_address(const Address &a) {
        const uint64_t start = a.address & -N, octets = (a.length + 1ull) * N;
        if ((1ull << a.size) != N || a.burst != 1)
            fail("write burst at %#llx has AWSIZE %u and AWBURST %u, not full beats that increment",
                 (unsigned long long)a.address, a.size, a.burst);
        if (start % PAGE + octets > PAGE)
            fail("write burst of %llu octets at %#llx crosses a 4 KiB boundary",
                 (unsigned long long)octets, (unsigned long long)a.address);
        addresses.push_back({cycle, a.address, a.length + 1ull});
        bursts.push_back({start, a.length + 1ull, false});
    }

    void take_data(const Data &d) {
        Pending &burst = bursts.front();
        if (d.last != (burst.beats == 1))
            fail("write data: WLAST is %d with %llu beats of the burst to come, at %#llx", d.last,
                 (unsigned long long)burst.beats - 1, (unsigned long long)burst.address);
        if (d.strobes) {
            writes.push_back({cycle, burst.address});
            if (faulty(burst.address, d.strobes)) burst.fault = true;
            else store(burst.address, d);
        }
        burst.address += N;
        if (--burst.beats == 0) {
            responses.push_back({cycle + settings.latency + 1, uint8_t(burst.fault ? 2 : 0)});
            bursts.pop_front();
        }
    }

    void store(uint64_t address, const Data &d) {
        const bool inside = address < size && size - address >= N;
        if (inside && d.strobes == mask(N)) { memcpy(memory + address, d.data, N); return; }
        bool outside = false;
        for (uint64_t k = 0; k < N; k++) {
            if (!(d.strobes >> k & 1)) continue;
            if (inside || (address < size && size - address > k)) memory[address + k] = d.data[k];
            else outside = true;
        }
        if (outside) stray.push_back({cycle, address});
    }

    void take_output(const Output &o) {
        const uint64_t octets = __builtin_popcountll(o.keep);
        if (!octets || o.keep != mask(octets) || (octets != N && !o.last))
            fail("exception stream: TKEEP %#llx on a beat that is%s the last",
                 (unsigned long long)o.keep, o.last ? "" : " not");
        if (!inside) {
            exceptions.push_back({o.stream, o.sequence, exception_octets.size(), 0});
        } else if (exceptions.back().stream != o.stream || exceptions.back().sequence != o.sequence) {
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
        accessed = address; purpose = why;
        access = write ? Writing : Reading;
        if (write) {
            top.s_axil_awaddr = address; top.s_axil_awvalid = 1;
            top.s_axil_wdata = value; top.s_axil_wvalid = 1;
            address_done = data_done = false;
        } else {
            top.s_axil_araddr = address; top.s_axil_arvalid = 1;
        }
    }

    // What the host does next, when no access is under way.
    void next_access() {
        if (operation == count && !draining) {
            // The end: everything was drained, and all counters are to be read.
            if (counters.size() < settings.counters)
                start(false, settings.counter[counters.size()], 0, Counter);
            else
                finished = true;
        } else if (top.irq) {
            start(false, settings.status, 0, Status);
        } else if (operation < count && operations[operation].kind == WRITE) {
            start(true, operations[operation].a, operations[operation].b, Host);
        } else if (operation == count || operations[operation].kind == DRAIN) {
            start(false, settings.status, 0, Status);
        }
    }

    void completed(uint8_t response, uint32_t value) {
        if (response) fail("%s of register %#05x is answered with response %u",
                           access == Written ? "the write" : "the read", accessed, response);
        access = Idle;
        switch (purpose) {
        case Status:
            if (value & 1) { word = 0; start(false, settings.event[0], 0, EventWord); }
            else if (value & 2) {
                if (operation == count) { draining = false; progress = cycle; }
                else if (operations[operation].kind == DRAIN) { operation++; progress = cycle; }
            }
            break;
        case EventWord:
            event.word[word++] = value;
            if (word < 9) start(false, settings.event[word], 0, EventWord);
            else { events.push_back(event); start(true, settings.event_pop, 1, EventPop); }
            break;
        case Host: operation++; progress = cycle; break;
        case Counter: counters.push_back(value); break;
        default: progress = cycle; break;
        }
    }

    void registers() {
        if (access == Writing) {
            if (top.s_axil_awvalid && top.s_axil_awready) address_done = true;
            if (top.s_axil_wvalid && top.s_axil_wready) data_done = true;
        }
        if (access == Reading && top.s_axil_arready) address_done = true;
    }

    // After the clock edge: what was taken is not shown again.
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

    void one_cycle(bool stalls) {
        const uint64_t drawn = stalls ? draw() : ~0ull;
        const uint64_t drawn_too = stalls ? draw() : ~0ull;
        // The packet.
        const bool packet = operation < count && operations[operation].kind == PACKET;
        if (packet && !offered && (drawn & 0xffff) >= settings.source) {
            const Operation &o = operations[operation];
            const uint64_t rest = o.length - at;
            memcpy(&top.s_axis_tdata, octets + o.offset + at, N);
            top.s_axis_tkeep = mask(rest < N ? rest : N);
            top.s_axis_tlast = rest <= N;
            top.s_axis_tid = o.a;
            top.s_axis_tuser = uint64_t(rest <= N && o.error) << 32 | o.b;
            offered = true;
        }
        top.s_axis_tvalid = offered;
        // The bus.
        top.m_axi_awready = bursts.size() < BURSTS && (drawn >> 16 & 0xffff) >= settings.write;
        top.m_axi_wready = (!bursts.empty() || ahead.size() < AHEAD) &&
                           (drawn >> 32 & 0xffff) >= settings.write;
        if (!top.m_axi_bvalid && !responses.empty() && responses.front().due <= cycle &&
            (drawn >> 48) >= settings.response) {
            top.m_axi_bvalid = 1;
            top.m_axi_bresp = responses.front().code;
        }
        top.m_axis_exc_tready = (drawn_too & 0xffff) >= settings.exceptions;
        if (access == Idle) next_access();
        step(0);

        // Handshakes.
        if (offered && top.s_axis_tready) {
            const Operation &o = operations[operation];
            if (at == 0) taken.push_back({cycle, cycle});
            at += N;
            offered = false;
            progress = cycle;
            if (at >= o.length) { taken.back().last = cycle; at = 0; operation++; }
        }
        if (top.m_axi_awvalid || held_address.held) {
            const Address now{top.m_axi_awaddr, top.m_axi_awlen, top.m_axi_awsize, top.m_axi_awburst};
            held_up("m_axi_aw", held_address, top.m_axi_awvalid, top.m_axi_awready, now);
            if (top.m_axi_awvalid && top.m_axi_awready) { take_address(now); progress = cycle; }
        }
        if (top.m_axi_wvalid || held_data.held) {
            Data now;
            memcpy(now.data, &top.m_axi_wdata, N);
            now.strobes = top.m_axi_wstrb; now.last = top.m_axi_wlast;
            held_up("m_axi_w", held_data, top.m_axi_wvalid, top.m_axi_wready, now);
            if (top.m_axi_wvalid && top.m_axi_wready) {
                progress = cycle;
                if (ahead.empty() && !bursts.empty()) take_data(now);
                else ahead.push_back(now);
            }
        }
        while (!ahead.empty() && !bursts.empty()) { take_data(ahead.front()); ahead.pop_front(); }
        const bool answered = top.m_axi_bvalid && top.m_axi_bready;
        if (answered) { responses.pop_front(); progress = cycle; }
        if (top.m_axis_exc_tvalid || held_output.held) {
            Output now;
            memcpy(now.data, &top.m_axis_exc_tdata, N);
            now.keep = top.m_axis_exc_tkeep; now.stream = top.m_axis_exc_tid;
            now.sequence = top.m_axis_exc_tuser; now.last = top.m_axis_exc_tlast;
            held_up("m_axis_exc", held_output, top.m_axis_exc_tvalid, top.m_axis_exc_tready, now);
            if (top.m_axis_exc_tvalid && top.m_axis_exc_tready) { take_output(now); progress = cycle; }
        }
        registers();
        const bool written = top.s_axil_bvalid, read = top.s_axil_rvalid;
        const uint8_t write_response = top.s_axil_bresp, read_response = top.s_axil_rresp;
        const uint32_t value = top.s_axil_rdata;

        step(1);
        if (answered) top.m_axi_bvalid = 0;
        registers_after(written, write_response, read, read_response, value);
        cycle++;
    }

    const char *doing() const {
        if (access != Idle && purpose != Status) return "a register access is under way";
        if (operation == count) return "all is sent, but the RNIC is not idle";
        switch (operations[operation].kind) {
        case PACKET: return "it takes no beat of the packet";
        case DRAIN: return "it does not become idle";
        default: return "a register is to be written";
        }
    }
};

}  // namespace

EXPORT Sim *sim_new(const Operation *operations, uint64_t count, const uint8_t *octets,
                    uint8_t *memory, uint64_t size, const Settings *settings, const Range *faults,
                    uint64_t fault_count, const char *waves) {
    Sim *sim = new Sim;
    sim->operations = operations; sim->count = count; sim->octets = octets;
    sim->memory = memory; sim->size = size; sim->settings = *settings;
    sim->faults.assign(faults, faults + fault_count);
    sim->random = settings->seed * 0x9E3779B97F4A7C15ull | 1;
    sim->draining = true;
#if VM_TRACE
    if (waves) {
        sim->context.traceEverOn(true);
        sim->trace.reset(new VerilatedVcdC);
        sim->top.trace(sim->trace.get(), 99);
        sim->trace->open(waves);
        if (!sim->trace->isOpen()) sim->fail("cannot write waves to %s", waves);
    }
#endif
    sim->begin();
    return sim;
}

// Simulate up to so many cycles. 0: there is more to do, 1: finished, 2: failed.
EXPORT int sim_run(Sim *sim, uint64_t cycles) {
    const Settings &s = sim->settings;
    const bool stalls = s.source || s.write || s.response || s.exceptions;
    while (cycles-- && !sim->finished && sim->message.empty()) {
        sim->one_cycle(stalls);
        if (sim->cycle - sim->progress > PATIENCE + s.latency)
            sim->fail("nothing moved for %llu cycles: operation %llu of %llu, %s",
                      (unsigned long long)(sim->cycle - sim->progress),
                      (unsigned long long)sim->operation + 1, (unsigned long long)sim->count,
                      sim->doing());
    }
    return sim->message.empty() ? sim->finished : 2;
}

EXPORT void sim_free(Sim *sim) {
#if VM_TRACE
    if (sim->trace) sim->trace->close();
#endif
    sim->top.final();
    delete sim;
}

EXPORT uint64_t sim_cycle(Sim *sim) { return sim->cycle; }
EXPORT uint64_t sim_operation(Sim *sim) { return sim->operation; }
EXPORT const char *sim_message(Sim *sim) { return sim->message.c_str(); }

// One of the lists that a run gives: its address, and its length in items.
EXPORT const void *sim_list(Sim *sim, int which, uint64_t *items) {
#define LIST(number, list) case number: *items = sim->list.size(); return sim->list.data();
    switch (which) {
    LIST(0, writes) LIST(1, addresses) LIST(2, taken) LIST(3, stray) LIST(4, events)
    LIST(5, exceptions) LIST(6, exception_octets) LIST(7, counters)
    }
    *items = 0;
    return nullptr;
}
