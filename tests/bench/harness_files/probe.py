"""What a confined worker can do, asked and answered over its descriptor; for tests of the walls."""

import json
import os
import socket
import threading


def can(step):
    try:
        step()
    except (OSError, RuntimeError):
        return False
    return True


def serve(descriptor):
    with os.fdopen(descriptor, "rb", closefd=False) as lines:
        paths = json.loads(lines.readline())
    steps = [lambda path=path: open(path) for path in paths]
    steps += [lambda: open("/tmp/probe", "w"), lambda: socket.create_connection(("127.0.0.1", 22), 1)]
    os.write(descriptor, json.dumps([str(can(step)) for step in steps]).encode() + b"\n")
