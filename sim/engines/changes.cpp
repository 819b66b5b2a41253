// Copies the value changes of a VCD to a writer of FST files.
//
// waves.py has read the VCD's header and declared the signals; the rest of the VCD comes here.

#include <cstdint>
#include <cstring>
#include <unistd.h>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

// A code of the VCD, read as a number to the base 94 whose digits begin with 1.
static uint64_t number(const char *code, const char *end) {
    uint64_t value = 0;
    while (code < end) value = value * 94 + (uint8_t(*code++) - '!') + 1;
    return value;
}

// Reads the VCD: first ``length`` octets at ``begun``, then those of a file, up to its end. Signals
// are known by the numbers of their codes: each has a handle of the writer, or 0 if it is not shown,
// and a width in bits. Returns 0, or 1 if the file cannot be read.
EXPORT int copy_changes(int file, const char *begun, uint64_t length, void *writer,
                        const uint32_t *handles, const uint32_t *widths, uint64_t signals,
                        void (*pass)(void *, uint64_t),
                        void (*change)(void *, uint32_t, const void *)) {
    std::vector<char> text(begun, begun + length), padded;
    size_t at = 0;  // of the first line that was not handled
    for (;;) {
        const char *line = text.data() + at, *stop = text.data() + text.size();
        while (const char *end = static_cast<const char *>(memchr(line, '\n', stop - line))) {
            if (*line == '#') {
                uint64_t time = 0;
                for (const char *digit = line + 1; digit < end; digit++)
                    time = time * 10 + (*digit - '0');
                pass(writer, time);
            } else if (*line == 'b' || *line == '0' || *line == '1') {
                const char *bits = line, *code = line + 1;
                if (*line == 'b') {
                    bits = line + 1;
                    code = static_cast<const char *>(memchr(bits, ' ', end - bits));
                    if (!code++) return 1;
                }
                const uint64_t signal = number(code, end);
                const size_t given = *line == 'b' ? code - 1 - bits : 1;
                if (signal < signals && handles[signal]) {
                    const size_t width = widths[signal];
                    if (given < width) {
                        padded.assign(width, '0');
                        memcpy(padded.data() + width - given, bits, given);
                        bits = padded.data();
                    }
                    change(writer, handles[signal], bits);
                }
            }
            line = end + 1;
        }
        text.erase(text.begin(), text.begin() + (line - text.data()));
        at = 0;
        const size_t kept = text.size();
        text.resize(kept + (1 << 16));
        const ssize_t came = read(file, text.data() + kept, 1 << 16);
        if (came < 0) return 1;
        text.resize(kept + came);
        if (came == 0) return 0;
    }
}
