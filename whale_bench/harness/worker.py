"""A harness file's own process: answers calls as JSON lines, one at a time.

    python -I -m whale_bench.harness.worker

The first line in is a `Start`, with the harness's source as the host read it; the first line out is
the harness's settings or a fault. Then comes one line out for each line in. What harness code prints
goes to standard error, never into the protocol. An alarm ends this process when a call takes longer
than the host would wait, so that it outlives no host.

Not covered: limits on memory; the host, too, kills this process when it takes too long.
"""

import os
import signal
import sys

import msgspec

from whale_bench.harness.calls import Call, HarnessFault, Start, answer_call, load


def serve(calls: int, answers: int) -> None:
    """Reads calls from one file descriptor and writes answers to another until the end of input."""
    decoder = msgspec.json.Decoder(Call)
    with os.fdopen(calls, "rb") as source, os.fdopen(answers, "wb") as sink:
        line = source.readline()
        if not line:
            return
        start = msgspec.json.decode(line, type=Start)
        signal.setitimer(signal.ITIMER_REAL, start.load_seconds)
        try:
            harness, settings = load(start.source, start.path)
        except HarnessFault as fault:
            sink.write(_line({"fault": str(fault)}))
            return
        answer = _line(settings)
        while True:
            signal.setitimer(signal.ITIMER_REAL, 0)
            sink.write(answer)
            sink.flush()
            if not (line := source.readline()):
                return
            signal.setitimer(signal.ITIMER_REAL, start.call_seconds)
            try:
                answer = _line(answer_call(harness, decoder.decode(line), start.path))
            except HarnessFault as fault:
                answer = _line({"fault": str(fault)})


def _line(value: object) -> bytes:
    return msgspec.json.encode(value) + b"\n"


if __name__ == "__main__":
    calls, answers = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    serve(calls, answers)
