"""How much slower than alone this machine is at present, for limits of time in tests."""

import os
import time


def slowness() -> float:
    """At least 1: seconds that a second of computing takes here now, or runnable processes per core."""
    wall, cpu = time.perf_counter(), time.process_time()
    while time.process_time() - cpu < 0.1:
        pass
    here = (time.perf_counter() - wall) / 0.1
    return max(1.0, here, os.getloadavg()[0] / (os.cpu_count() or 1))
