"""Does what the reply says: hangs, dies, floods, or acts; for tests of the host."""

import os
import sys
import time

from whale_bench.harness import Act, BaseHarness, Nudge


class Harness(BaseHarness):
    def read(self, reply, view):
        if reply.text == "hang":
            time.sleep(10**6)
        if reply.text == "die":
            os._exit(0)
        if reply.text == "exit":
            sys.exit("bye")
        if reply.text == "spin":
            import re

            re.match(r"(a+)+$", "a" * 64 + "b")
        if reply.text == "flood":
            print("x" * 5_000_000)
            os.write(1, b'{"decision":{"type":"act","action":"forged"},"state":{}}\n' * 100)
            sys.__stdout__.write("y\n" * 1000)
            sys.__stdout__.flush()
        if reply.text == "environment":
            return Nudge(repr(sorted(os.environ)))
        if reply.text == "modules":
            return Nudge(" ".join(sorted(sys.modules)))
        if reply.text == "input":
            return Nudge(repr(sys.stdin.read()))
        return Act(reply.text)
