"""A harness file's own process: answers calls as JSON lines, one at a time.

    python -I -m whale_bench.harness.worker FILE

The first line out is the harness's settings or a fault; then one line out for each line in. What
harness code prints goes to standard error, never into the protocol.

Not covered: limits on time and memory; the host kills this process when it takes too long.
"""

import os
import sys

import msgspec

from whale_bench.harness.calls import Answer, Call, HarnessFault, answer_call, load_class, read_settings


def serve(path: str, calls: int, answers: int) -> None:
    """Reads calls from one file descriptor and writes answers to another until the end of input."""
    decoder = msgspec.json.Decoder(Call)
    with os.fdopen(calls, "rb") as source, os.fdopen(answers, "wb", buffering=0) as sink:
        try:
            with open(path, encoding="utf-8") as file:  # noqa: PTH123 - the worker's first and only file
                harness = load_class(file.read(), path)()
            sink.write(_line(read_settings(harness, path)))
        except HarnessFault as fault:
            sink.write(_line({"fault": str(fault)}))
            return
        for line in source:
            try:
                sink.write(_line(answer_call(harness, decoder.decode(line), path)))
            except HarnessFault as fault:
                sink.write(_line({"fault": str(fault)}))


def _line(value: Answer | dict[str, str] | object) -> bytes:
    return msgspec.json.encode(value) + b"\n"


if __name__ == "__main__":
    calls, answers = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    serve(sys.argv[1], calls, answers)
