"""Makes Bitwuzla a command, ``--lang smt2`` on standard input, from its Python module.

Run as a script, under the name ``bitwuzla`` in a search path. Bitwuzla's wheel has no command.
"""

import os
import sys

#: The parser reads blocks of less than this, and answers a command only after the next block.
BLOCK = 8192
ANSWERED = (b"(check-sat", b"(get-", b"(echo", b"(exit")


def solve(descriptor):
    """Solves the commands that arrive through a pipe."""
    import bitwuzla

    options = bitwuzla.Options()
    options.set(bitwuzla.Option.PRODUCE_MODELS, True)
    parser = bitwuzla.Parser(bitwuzla.TermManager(), options)
    try:
        parser.parse(f"/dev/fd/{descriptor}", False, True)
    except bitwuzla.BitwuzlaException as error:
        print(f'(error "{error}")', flush=True)


def main():
    if "--help" in sys.argv:
        print("bitwuzla --lang smt2")
        return
    inlet, outlet = os.pipe()
    if not os.fork():
        os.close(outlet)
        solve(inlet)
        os._exit(0)
    os.close(inlet)
    try:
        with os.fdopen(outlet, "wb", buffering=0) as pipe:
            for line in sys.stdin.buffer:
                pipe.write(line)
                if line.startswith(ANSWERED):
                    pipe.write(b"\n" * BLOCK)
                if line.startswith(b"(exit"):
                    break
    except BrokenPipeError:
        pass
    os.wait()


if __name__ == "__main__":
    main()
