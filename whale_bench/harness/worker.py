"""Inside a harness's worker: answers calls as JSON lines, in the order in which they came.

The first line in is a `Start`, with the harness's source as the host read it; the first line out is the
harness's settings or a fault. Then comes one line out for each line in, at once, so that the host knows
which call is running. Lines that came together are read together. Before each call Python's own random
numbers are seeded from the rollout's seed, so that a harness that draws from them can be replayed.

What harness code prints goes nowhere, never into the protocol.

Not covered: the walls around this process and its end, which are `whale_envs.sandbox.confined`'s; a
harness that writes to the protocol's descriptor, which the host takes for a fault.
"""

import os
import random

import msgspec

from whale_bench.harness.calls import Call, Fault, HarnessFault, Start, answer_call, load


def serve(descriptor: int) -> None:
    """Answers until the host closes its end."""
    decoder = msgspec.json.Decoder(Call)
    with os.fdopen(descriptor, "rb", buffering=262_144, closefd=False) as lines:
        line = lines.readline()
        if not line:
            return
        start = msgspec.json.decode(line, type=Start)
        random.seed(0)
        try:
            harness, settings = load(start.source, start.path)
        except HarnessFault as fault:
            _write(descriptor, Fault(0, str(fault)))
            return
        _write(descriptor, settings)
        while line := lines.readline():
            call = decoder.decode(line)
            random.seed(f"{call.view.seed} {len(call.view.turns)} {call.reply is None}")
            try:
                _write(descriptor, answer_call(harness, call, start.path, strict=start.strict))
            except HarnessFault as fault:
                _write(descriptor, Fault(call.number, str(fault)))


def _write(descriptor: int, value: object) -> None:
    left = memoryview(msgspec.json.encode(value) + b"\n")
    while left:
        left = left[os.write(descriptor, left) :]
