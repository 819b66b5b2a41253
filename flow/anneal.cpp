// Improves the placement of a netlist on an ECP5 by simulated annealing, above all for the latest
// paths. `annealing.py` writes PROBLEM and reads RESULT, and describes both.
//
// anneal PROBLEM RESULT SWEEPS TEMPERATURE REACH SEED
//
// Distances are in tiles, times in nanoseconds. The cost is the sum of the half perimeters of all
// nets and, for each connection, a high power of the length of its longest path. The length comes
// from the last timing analysis, except for the connection's own delay, which is up to date. Each
// sweep makes five timing analyses. The result is the best placement that an analysis has seen. It
// states the longest path before and after and, for each cell, its place and the longest path
// through its inputs.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <utility>
#include <vector>

using std::vector;
using Place = std::array<int, 3>;  // column, row, place in the tile

enum Kind { TABLE, FLIP_FLOP, RAM_WRITE, BLOCK_RAM, OTHER };
enum Mobility { SINGLE, RIGID, BLOCK, FIXED };  // one logic cell, several, a block RAM, immovable
enum Flag { MULTIPLEXED = 1, CARRY = 2, RAM = 4 };  // of a table; flip-flop: 1 if fed from outside

constexpr int TILE = 8;             // logic cells in a tile
constexpr int LATE = 240;           // one path in this number is longer than the aim
constexpr int TRIES = 16;           // places tried for a cell that has to make way
constexpr int REGION = 8;           // width and height of a region in tiles
constexpr int CROWD = 24;           // ends of connections that a tile has room for, on average
constexpr double CROWDED = 0.03;    // cost of the square of the excess ends in a region
constexpr int FANOUT = 48;          // nets with more sinks count as without length
constexpr double PER_NS = 80;       // tiles per nanosecond, on a path as long as the aim
constexpr int STEEP = 32;           // exponent of a path's length in its cost; a power of two
constexpr double URGENT = 0.97;     // a path longer than this part of the aim is urgent
constexpr int NEAR = 4;             // greatest distance of units that move together
constexpr double TOGETHER = 0.5;    // share of late units that move with their neighbours
constexpr size_t GROUP = 16;        // most units that move together
constexpr double EXCHANGED = 0.2;   // share of large units that swap with one of equal shape
constexpr double NORM = 40;         // exponent of a path's length in a placement's score
constexpr double HEAT = 0.02;       // extra temperature of late connections

struct Cell {
    int unit, kind, tile_set, slice_set, flags;
    int ends;  // connections to the cell and nets that it drives, except those inside a tile
    Place at;
    vector<int> inputs, nets, driven;  // its input connections, its nets, the nets that it drives
};
struct Unit {
    int mobility;
    vector<int> cells;
    const vector<int>* alike;  // all units of this shape, including this one
};
struct Connection {
    int net, cell, pin;
    float fixed;                // the delay if there is only one route, or -1
    float path, before, weight;  // at the last analysis: longest path through it, delay, urgency
};
struct Net {
    int cell, pin;
    vector<int> sinks;
};
struct Gate {
    int from, to;
    float delay;
};

static int columns, rows;
static vector<char> logic_tile, block_site;
static vector<std::pair<int, int>> block_sites;
static vector<Cell> cells;
static vector<Unit> units;
static vector<Net> nets;
static vector<Connection> connections;
static vector<Gate> gates;
static int pins;
static vector<float> starts;
static vector<std::pair<int, float>> ends;
static vector<std::array<int, 2 * TILE>> occupied;  // by tile: its tables, then its flip-flops
static vector<int> ram_write, block_ram;            // by tile

static uint64_t state = 88172645463325252ull;
static uint64_t random64() {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}
static int below(int n) { return int((random64() >> 11) % uint64_t(n)); }
static double fraction() { return double(random64() >> 11) / 9007199254740992.0; }
static int tile(int x, int y) { return x * rows + y; }
static bool inside(int x, int y) { return x >= 0 && y >= 0 && x < columns && y < rows; }

// Returns the median delay of nextpnr's routes over a distance, on a device of speed grade 8.
static float routed(int distance) {
    static const vector<float> table = [] {
        const double x[] = {0,  1,  2,  3,  4,  5,  6,  8,  10, 15, 20,
                            25, 30, 35, 40, 45, 50, 60, 70, 80, 400};
        const double y[] = {.40,  .58,  .70,  .79,  .88,  .96,  1.0, 1.06, 1.16, 1.36, 1.54,
                            1.73, 1.93, 2.12, 2.34, 2.55, 2.80, 3.4, 3.9,  4.6,  24};
        vector<float> made;
        for (int i = 0, k = 0; i < 400; i++) {
            while (x[k + 1] < i) k++;
            made.push_back(float(y[k] + (y[k + 1] - y[k]) * (i - x[k]) / (x[k + 1] - x[k])));
        }
        return made;
    }();
    return table[size_t(distance)];
}
static float delay(const Connection& c) {
    if (c.fixed >= 0) return c.fixed;
    const Place &a = cells[nets[c.net].cell].at, &b = cells[c.cell].at;
    return routed(std::abs(a[0] - b[0]) + std::abs(a[1] - b[1]));
}
static int length(const Net& net) {
    const Place& a = cells[net.cell].at;
    int low[2] = {a[0], a[1]}, high[2] = {a[0], a[1]};
    for (int sink : net.sinks) {
        const Place& b = cells[connections[sink].cell].at;
        for (int i = 0; i < 2; i++)
            low[i] = std::min(low[i], b[i]), high[i] = std::max(high[i], b[i]);
    }
    return high[0] - low[0] + high[1] - low[1];
}

// By region: the number of ends of connections, minus the number that the region has room for.
static vector<int> crowd;
static int& region(const Place& at) {
    return crowd[at[0] / REGION * (rows / REGION + 1) + at[1] / REGION];
}
static double crowding(const vector<int>& moved, const vector<Place>& from,
                       const vector<Place>& to) {
    double more = 0;
    auto square = [](double over) { return over > 0 ? over * over : 0; };
    for (size_t i = 0; i < moved.size(); i++) {
        int &a = region(from[i]), &b = region(to[i]), ends = cells[moved[i]].ends;
        if (&a == &b) continue;
        more += square(a - ends) - square(a) + square(b + ends) - square(b);
        a -= ends, b += ends;
    }
    return CROWDED * more;
}

static int& seat(const Cell& c, const Place& at) {
    int t = tile(at[0], at[1]);
    if (c.kind == RAM_WRITE) return ram_write[t];
    return occupied[t][at[2] + (c.kind == FLIP_FLOP ? TILE : 0)];
}
static int& seat(int c) { return seat(cells[c], cells[c].at); }
static void lift(int c) { seat(c) = -1; }
static void drop(int c) { seat(c) = c; }
static Place corner(const Unit& unit) {
    Place low = cells[unit.cells[0]].at;
    for (int c : unit.cells)
        for (int k = 0; k < 2; k++) low[k] = std::min(low[k], cells[c].at[k]);
    return low;
}
// Returns true if a tile obeys nextpnr's rules. All flip-flops of a tile share clock and reset, and
// those of a slice also the enable. Either all tables of a slice have carries, or none. A
// multiplexer's select occupies the outside input of the flip-flop beside it.
static bool legal(int t) {
    int of_tile = -1;
    for (int slice = 0; slice < TILE / 2; slice++) {
        int of_slice = -1, carry = -1;
        for (int z = 2 * slice; z < 2 * slice + 2; z++) {
            int table = occupied[t][z], flip_flop = occupied[t][z + TILE], flags = 0;
            if (table >= 0) {
                flags = cells[table].flags;
                if (slice == 2 && ram_write[t] >= 0 && !(flags & RAM)) return false;
                if (carry >= 0 && carry != (flags & CARRY)) return false;
                carry = flags & CARRY;
            }
            if (flip_flop < 0) continue;
            const Cell& f = cells[flip_flop];
            if ((flags & MULTIPLEXED) && f.flags) return false;
            if (of_slice >= 0 && of_slice != f.slice_set) return false;
            if (of_tile >= 0 && of_tile != f.tile_set) return false;
            of_slice = f.slice_set, of_tile = f.tile_set;
        }
    }
    return true;
}

// Static timing analysis.
static vector<int> order, pin_net, pin_connection;
static vector<vector<int>> gates_to, gates_from;
static vector<float> arrival, tail;
static vector<int> urgent;  // units with a late path
static double worst, score;    // the longest path, and a mean of all paths that favours long ones
static double aim;             // the length that paths should have at most
static void sort_pins() {
    gates_to.resize(pins), gates_from.resize(pins);
    pin_net.assign(pins, -1), pin_connection.assign(pins, -1);
    vector<int> open(pins, 0);
    for (size_t i = 0; i < gates.size(); i++) {
        gates_to[gates[i].to].push_back(int(i)), gates_from[gates[i].from].push_back(int(i));
        open[gates[i].to]++;
    }
    for (size_t n = 0; n < nets.size(); n++) {
        pin_net[nets[n].pin] = int(n);
        for (int c : nets[n].sinks) {
            int pin = connections[c].pin;
            pin_connection[pin] = c, open[pin]++;
        }
    }
    for (int p = 0; p < pins; p++)
        if (!open[p]) order.push_back(p);
    for (size_t i = 0; i < order.size(); i++) {
        int p = order[i];
        for (int g : gates_from[p])
            if (!--open[gates[g].to]) order.push_back(gates[g].to);
        if (pin_net[p] >= 0)
            for (int c : nets[pin_net[p]].sinks)
                if (!--open[connections[c].pin]) order.push_back(connections[c].pin);
    }
}
static void analyse() {
    const float never = -1e9f;
    arrival.assign(pins, never), tail.assign(pins, never);
    for (int p : order) {
        float at = starts[p] >= 0 ? starts[p] : never;
        if (pin_connection[p] >= 0) {
            const Connection& c = connections[pin_connection[p]];
            at = std::max(at, arrival[nets[c.net].pin] + delay(c));
        }
        for (int g : gates_to[p]) at = std::max(at, arrival[gates[g].from] + gates[g].delay);
        arrival[p] = at;
    }
    vector<float> latest;
    for (auto& [pin, setup] : ends) {
        tail[pin] = std::max(tail[pin], setup);
        latest.push_back(arrival[pin] + setup);
    }
    size_t kth = latest.size() / LATE;
    auto middle = latest.begin() + long(kth);
    std::nth_element(latest.begin(), middle, latest.end(), std::greater<float>());
    aim = std::max(*middle, 0.1f);
    worst = *std::max_element(latest.begin(), latest.end());
    score = 0;
    for (float path : latest) score += std::pow(std::max(path, 0.0f) / worst, NORM);
    score = worst * std::pow(score, 1 / NORM);
    for (size_t i = order.size(); i-- > 0;) {
        int p = order[i];
        float left = tail[p];
        for (int g : gates_from[p]) left = std::max(left, tail[gates[g].to] + gates[g].delay);
        if (pin_net[p] >= 0)
            for (int c : nets[pin_net[p]].sinks)
                left = std::max(left, tail[connections[c].pin] + delay(connections[c]));
        tail[p] = left;
    }
    urgent.clear();
    for (Connection& c : connections) {
        c.before = delay(c);
        c.path = c.fixed < 0 ? arrival[nets[c.net].pin] + c.before + tail[c.pin] : -1;
        c.weight = c.path < 0 ? 0 : float(std::pow(c.path / aim, STEEP - 1));
        if (c.path > URGENT * aim)
            for (int end : {c.cell, nets[c.net].cell})
                if (units[cells[end].unit].mobility != FIXED) urgent.push_back(cells[end].unit);
    }
}

// The cost of a move: of all nets and connections of the cells that it moves.
static vector<int> touched_nets, touched_connections, net_mark, connection_mark;
static int mark = 0;
static void touch(const vector<int>& moved) {
    mark++;
    touched_nets.clear(), touched_connections.clear();
    auto add = [](vector<int>& list, vector<int>& marks, int i) {
        if (marks[i] != mark) marks[i] = mark, list.push_back(i);
    };
    for (int c : moved) {
        for (int n : cells[c].nets) add(touched_nets, net_mark, n);
        for (int i : cells[c].inputs) add(touched_connections, connection_mark, i);
        for (int n : cells[c].driven)
            for (int i : nets[n].sinks) add(touched_connections, connection_mark, i);
    }
}
static double cost() {
    double sum = 0;
    for (int n : touched_nets)
        if (nets[n].sinks.size() <= FANOUT) sum += length(nets[n]);
    for (int i : touched_connections) {
        const Connection& c = connections[i];
        if (c.path < 0) continue;
        double length = std::max(0.0, (c.path + delay(c) - c.before) / aim);
        for (int power = 1; power < STEEP; power *= 2) length *= length;
        sum += PER_NS * aim / STEEP * length;
    }
    return sum;
}
static bool accept(double more, double temperature) {
    return more <= 0 || (temperature > 0 && fraction() < std::exp(-more / temperature));
}

static void move_block(int u, int x, int y, double temperature) {
    int c = units[u].cells[0], other = block_ram[tile(x, y)];
    if (!block_site[tile(x, y)] || other == c) return;
    if (other >= 0 && units[cells[other].unit].mobility != BLOCK) return;
    vector<int> moved{c};
    if (other >= 0) moved.push_back(other);
    touch(moved);
    double before = cost();
    Place from = cells[c].at, to = {x, y, 0};
    cells[c].at = to;
    if (other >= 0) cells[other].at = from;
    if (accept(cost() - before, temperature)) {
        block_ram[tile(from[0], from[1])] = other, block_ram[tile(x, y)] = c;
        return;
    }
    cells[c].at = from;
    if (other >= 0) cells[other].at = to;
}

// Finds a place for the displaced unit v, which is one logic cell. The first try is `left`, the old
// place of the cell that displaced it. Returns false if no try succeeds.
static bool make_way(int v, const Place& left, int tries) {
    const vector<int>& own = units[v].cells;
    const Place home = cells[own[0]].at;
    for (int i = 0; i < tries; i++) {
        Place to = left;
        if (i > 0) {
            to = {home[0] + below(9) - 4, home[1] + below(9) - 4, below(TILE)};
            if (!inside(to[0], to[1]) || !logic_tile[tile(to[0], to[1])]) continue;
        }
        bool free = true;
        for (int c : own) cells[c].at = to, free &= seat(c) < 0;
        if (free) {
            for (int c : own) drop(c);
            if (legal(tile(to[0], to[1]))) return true;
            for (int c : own) lift(c);
        }
    }
    for (int c : own) cells[c].at = home;
    return false;
}
// Returns the cells that must leave if cell c comes to a place: the cell at this place, and
// flip-flops with another clock, reset or enable. A single cell displaces only the former.
static const vector<int>& in_the_way(int c, const Place& at, bool single) {
    static vector<int> found;
    found.clear();
    if (int other = seat(cells[c], at); other >= 0) found.push_back(other);
    if (cells[c].kind != FLIP_FLOP || single) return found;
    for (int z = 0; z < TILE; z++) {
        int other = occupied[tile(at[0], at[1])][z + TILE];
        if (other < 0 || z == at[2]) continue;
        bool same_slice = z / 2 == at[2] / 2;
        if (cells[other].tile_set != cells[c].tile_set ||
            (same_slice && cells[other].slice_set != cells[c].slice_set))
            found.push_back(other);
    }
    return found;
}
static void move_logic(const vector<int>& group, const Place& to, double temperature) {
    const Place base = cells[units[group[0]].cells[0]].at;
    bool single = group.size() == 1 && units[group[0]].mobility == SINGLE;
    Place by = {to[0] - base[0], to[1] - base[1], single ? to[2] - base[2] : 0};
    if (by == Place{0, 0, 0}) return;
    static vector<int> own, moved, displaced;
    static vector<Place> lefts, olds, news;
    own.clear(), displaced.clear(), lefts.clear();
    for (int u : group) own.insert(own.end(), units[u].cells.begin(), units[u].cells.end());
    moved = own;
    for (int c : own) {
        Place there = cells[c].at;
        for (int i = 0; i < 3; i++) there[i] += by[i];
        if (!inside(there[0], there[1]) || !logic_tile[tile(there[0], there[1])]) return;
        for (int other : in_the_way(c, there, single)) {
            int v = cells[other].unit;
            if (std::find(group.begin(), group.end(), v) != group.end()) continue;
            if (units[v].mobility != SINGLE) return;
            if (std::find(displaced.begin(), displaced.end(), v) == displaced.end())
                displaced.push_back(v), lefts.push_back(cells[c].at);
        }
    }
    for (int v : displaced) moved.insert(moved.end(), units[v].cells.begin(), units[v].cells.end());
    olds.clear();
    for (int c : moved) olds.push_back(cells[c].at), lift(c);
    for (int c : own)
        for (int i = 0; i < 3; i++) cells[c].at[i] += by[i];
    for (int c : own) drop(c);
    bool possible = true;
    size_t dropped = own.size();
    for (size_t i = 0; i < displaced.size() && possible; i++) {
        possible = make_way(displaced[i], lefts[i], single ? 1 : TRIES);
        if (possible) dropped += units[displaced[i]].cells.size();
    }
    for (size_t i = 0; i < own.size() && possible; i++) {
        const Place& at = cells[own[i]].at;
        possible = legal(tile(at[0], at[1]));
    }
    if (possible) {
        touch(moved);
        double after = cost();
        news.clear();
        for (size_t i = 0; i < moved.size(); i++)
            news.push_back(cells[moved[i]].at), cells[moved[i]].at = olds[i];
        double before = cost();
        for (size_t i = 0; i < moved.size(); i++) cells[moved[i]].at = news[i];
        if (accept(after - before + crowding(moved, olds, news), temperature)) return;
        crowding(moved, news, olds);
    }
    for (size_t i = 0; i < dropped; i++) lift(moved[i]);
    for (size_t i = 0; i < moved.size(); i++) cells[moved[i]].at = olds[i];
    for (int c : moved) drop(c);
}

// Swaps two units of the same shape, for example carry chains.
static void exchange(int u, int v, double temperature) {
    static vector<int> moved;
    static vector<Place> olds, news;
    moved = units[u].cells, olds.clear(), news.clear();
    moved.insert(moved.end(), units[v].cells.begin(), units[v].cells.end());
    const Place a = corner(units[u]), b = corner(units[v]);
    for (size_t i = 0; i < moved.size(); i++) {
        int way = i < units[u].cells.size() ? 1 : -1;
        Place at = cells[moved[i]].at;
        olds.push_back(at);
        for (int k = 0; k < 2; k++) at[k] += way * (b[k] - a[k]);
        news.push_back(at);
    }
    auto put = [&](const vector<Place>& places) {
        for (int c : moved) lift(c);
        for (size_t i = 0; i < moved.size(); i++) cells[moved[i]].at = places[i], drop(moved[i]);
    };
    touch(moved);
    double before = cost();
    put(news);
    bool possible = true;
    for (const Place& at : news) possible = possible && legal(tile(at[0], at[1]));
    if (possible && accept(cost() - before + crowding(moved, olds, news), temperature)) return;
    if (possible) crowding(moved, news, olds);
    put(olds);
}

// Proposes a place for a unit: near its own, or on the way to a cell that is connected with one of
// its cells.
static Place propose(const Unit& unit, double reach) {
    Place at = cells[unit.cells[0]].at;
    at[2] = below(TILE);
    if (unit.mobility == BLOCK) {
        auto site = block_sites[below(int(block_sites.size()))];
        return {site.first, site.second, 0};
    }
    if (fraction() < 0.65) {
        int r = int(reach);
        return {at[0] + below(2 * r + 1) - r, at[1] + below(2 * r + 1) - r, at[2]};
    }
    int from = unit.cells[below(int(unit.cells.size()))], best = from;
    const Cell& c = cells[from];
    int choices = int(c.inputs.size() + c.driven.size());
    float most = -1;
    for (int i = 0; i < 3 && choices > 0; i++) {
        int k = below(choices);
        const Connection* way;
        int other;
        if (k < int(c.inputs.size())) {
            way = &connections[c.inputs[k]], other = nets[way->net].cell;
        } else {
            const Net& n = nets[c.driven[k - int(c.inputs.size())]];
            way = &connections[n.sinks[below(int(n.sinks.size()))]], other = way->cell;
        }
        if (way->weight > most) most = way->weight, best = other;
    }
    double part = fraction();
    for (int i = 0; i < 2; i++)
        at[i] += int(std::lround((cells[best].at[i] - c.at[i]) * part)) + below(5) - 2;
    return at;
}
// Collects in `group` the unit u and all nearby units that late connections join with it. They move
// together, because the first tile of a route costs most: if one unit moved alone, a path would get
// longer. Sets `to` to a place on the way to the far end of the unit's latest connection. Returns
// false if no late connection has a far end.
static bool gather(int u, vector<int>& group, Place& to) {
    auto apart = [](int a, int b) {
        const Place &x = cells[a].at, &y = cells[b].at;
        return std::abs(x[0] - y[0]) + std::abs(x[1] - y[1]);
    };
    auto each = [](int u, auto found) {
        for (int c : units[u].cells) {
            for (int i : cells[c].inputs) found(connections[i], c, nets[connections[i].net].cell);
            for (int n : cells[c].driven)
                for (int i : nets[n].sinks) found(connections[i], c, connections[i].cell);
        }
    };
    float latest = float(URGENT * aim);
    int near = -1, far = -1;
    each(u, [&](const Connection& way, int c, int other) {
        if (way.path > latest && apart(c, other) > NEAR) latest = way.path, near = c, far = other;
    });
    if (far < 0) return false;
    group.assign(1, u);
    for (size_t i = 0; i < group.size(); i++)
        each(group[i], [&](const Connection& way, int c, int other) {
            int v = cells[other].unit;
            if (way.path > URGENT * aim && apart(c, other) <= NEAR && group.size() < GROUP &&
                units[v].mobility <= RIGID && v != cells[far].unit &&
                std::find(group.begin(), group.end(), v) == group.end())
                group.push_back(v);
        });
    to = cells[units[u].cells[0]].at;
    double part = fraction();
    for (int i = 0; i < 2; i++)
        to[i] += int(std::lround((cells[far].at[i] - cells[near].at[i]) * part)) + below(3) - 1;
    return true;
}
static double heat(const Unit& unit) {
    float most = 0;
    const Cell& c = cells[unit.cells[below(int(unit.cells.size()))]];
    for (int i : c.inputs) most = std::max(most, connections[i].weight);
    for (int n : c.driven)
        if (nets[n].sinks.size() <= FANOUT)
            for (int i : nets[n].sinks) most = std::max(most, connections[i].weight);
    return 1 + HEAT * PER_NS * most;
}

static bool read_problem(FILE* f) {
    auto integer = [f] {
        int i = 0;
        if (fscanf(f, "%d", &i) != 1) exit(2);
        return i;
    };
    auto real = [f] {
        float x = 0;
        if (fscanf(f, "%f", &x) != 1) exit(2);
        return x;
    };
    columns = integer(), rows = integer();
    logic_tile.resize(columns * rows), block_site.resize(columns * rows);
    for (int i = integer(); i-- > 0;) {
        int x = integer(), y = integer();
        logic_tile[tile(x, y)] = 1;
    }
    for (int i = integer(); i-- > 0;) {
        int x = integer(), y = integer();
        block_site[tile(x, y)] = 1, block_sites.push_back({x, y});
    }
    units.resize(integer());
    for (Unit& u : units) u.mobility = integer();
    cells.resize(integer());
    for (size_t i = 0; i < cells.size(); i++) {
        Cell& c = cells[i];
        c.unit = integer(), c.kind = integer();
        c.at[0] = integer(), c.at[1] = integer(), c.at[2] = integer();
        c.tile_set = integer(), c.slice_set = integer(), c.flags = integer();
        units[c.unit].cells.push_back(int(i));
    }
    pins = integer();
    gates.resize(integer());
    for (Gate& g : gates) g.from = integer(), g.to = integer(), g.delay = real();
    starts.assign(pins, -1);
    for (int i = integer(); i-- > 0;) {
        int p = integer();
        starts[p] = real();
    }
    for (int i = integer(); i-- > 0;) {
        int p = integer();
        ends.push_back({p, real()});
    }
    nets.resize(integer());
    for (size_t i = 0; i < nets.size(); i++) {
        Net& n = nets[i];
        n.cell = integer(), n.pin = integer();
        cells[n.cell].driven.push_back(int(i)), cells[n.cell].nets.push_back(int(i));
        for (int k = integer(); k-- > 0;) {
            Connection c{int(i), integer(), integer(), real(), 0, 0, 0};
            n.sinks.push_back(int(connections.size()));
            cells[c.cell].inputs.push_back(int(connections.size()));
            cells[c.cell].nets.push_back(int(i));
            connections.push_back(c);
        }
    }
    return !ends.empty();
}

int main(int argc, char** argv) {
    FILE* in = argc == 7 ? fopen(argv[1], "r") : nullptr;
    if (!in || !read_problem(in)) return 2;
    int sweeps = atoi(argv[3]);
    double hottest = atof(argv[4]), farthest = atof(argv[5]);
    state += 7919 * uint64_t(atoi(argv[6]));
    std::array<int, 2 * TILE> none;
    none.fill(-1);
    occupied.assign(columns * rows, none);
    ram_write.assign(columns * rows, -1), block_ram.assign(columns * rows, -1);
    net_mark.assign(nets.size(), 0), connection_mark.assign(connections.size(), 0);
    vector<int> movable, large;
    for (size_t u = 0; u < units.size(); u++) {
        if (units[u].mobility != FIXED) movable.push_back(int(u));
        if (units[u].mobility == RIGID || units[u].mobility == BLOCK) large.push_back(int(u));
    }
    for (size_t i = 0; i < cells.size(); i++) {
        if (cells[i].kind == BLOCK_RAM) block_ram[tile(cells[i].at[0], cells[i].at[1])] = int(i);
        if (cells[i].kind < BLOCK_RAM) drop(int(i));
    }
    std::map<vector<std::array<int, 4>>, vector<int>> shapes;
    for (size_t u = 0; u < units.size(); u++) {
        units[u].alike = nullptr;
        if (units[u].mobility != RIGID) continue;
        const Place low = corner(units[u]);
        vector<std::array<int, 4>> shape;
        for (int c : units[u].cells) {
            const Place& at = cells[c].at;
            shape.push_back({at[0] - low[0], at[1] - low[1], at[2], cells[c].kind});
        }
        std::sort(shape.begin(), shape.end());
        vector<int>& alike = shapes[shape];
        alike.push_back(int(u)), units[u].alike = &alike;
    }
    crowd.assign((columns / REGION + 1) * (rows / REGION + 1), 0);
    for (size_t t = 0; t < logic_tile.size(); t++)
        if (logic_tile[t]) region({int(t) / rows, int(t) % rows, 0}) -= CROWD;
    for (Cell& c : cells) {
        c.ends = 0;
        if (c.kind == BLOCK_RAM || c.kind == OTHER) continue;
        for (int i : c.inputs) c.ends += connections[i].fixed < 0;
        for (int n : c.driven)
            c.ends += std::any_of(nets[n].sinks.begin(), nets[n].sinks.end(),
                                  [](int i) { return connections[i].fixed < 0; });
        region(c.at) += c.ends;
    }
    for (int t = 0; t < columns * rows; t++)
        if (!legal(t)) return 2;
    sort_pins();
    analyse();
    double at_first = worst, best = score;
    vector<Place> places;
    vector<int> group;
    auto keep_best = [&] {
        if (score >= best && !places.empty()) return;
        best = score, places.clear();
        for (const Cell& c : cells) places.push_back(c.at);
    };
    keep_best();
    for (int sweep = 0; sweep < sweeps; sweep++) {
        double done = double(sweep) / sweeps;
        double reach = farthest * std::pow(3 / farthest, done);
        double temperature = sweep < sweeps - 8 ? hottest * std::pow(0.02, done) : 0;
        for (int part = 0; part < 5; part++) {
            if (sweep + part) analyse(), keep_best();
            for (size_t i = 0; i < 2 * movable.size(); i++) {
                double choice = fraction();
                const vector<int>& from = choice < 0.12 && !large.empty()     ? large
                                          : choice < 0.3 && !urgent.empty() ? urgent
                                                                             : movable;
                int u = from[below(int(from.size()))];
                double local = temperature > 0 ? temperature * heat(units[u]) : 0;
                const vector<int>* alike = units[u].alike;
                if (alike && &from == &large && fraction() < EXCHANGED) {
                    int v = (*alike)[size_t(below(int(alike->size())))];
                    if (v != u) exchange(u, v, local);
                    continue;
                }
                group.assign(1, u);
                Place to;
                bool together = &from == &urgent && units[u].mobility != BLOCK &&
                                fraction() < TOGETHER && gather(u, group, to);
                if (!together) to = propose(units[u], reach);
                if (units[u].mobility == BLOCK) move_block(u, to[0], to[1], local);
                else move_logic(group, to, local);
            }
        }
    }
    analyse(), keep_best();
    for (size_t i = 0; i < cells.size(); i++) cells[i].at = places[i];
    analyse();
    FILE* out = fopen(argv[2], "w");
    if (!out) return 2;
    fprintf(out, "%.3f %.3f\n", at_first, worst);
    for (const Cell& c : cells) {
        float path = 0;
        for (int i : c.inputs) path = std::max(path, connections[i].path);
        fprintf(out, "%d %d %d %.3f\n", c.at[0], c.at[1], c.at[2], path);
    }
    return fclose(out) ? 2 : 0;
}
