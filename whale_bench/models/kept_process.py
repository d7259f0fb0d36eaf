"""Runs one command for as long as the process that asked for it lives, and not a moment longer.

    python -P -s whale_bench/models/kept_process.py HOST_PID COMMAND…

The command runs in a process group of its own. It is ended, its children too, when standard input is closed,
when this process is told to end (SIGTERM), and when the host dies, however that happens: the pipe on
standard input closes then, and on Linux the kernel sends SIGTERM besides, for a fork of the host may hold the
pipe open. Should this process itself be killed, Linux kills the command. SIGTERM comes first, and SIGKILL
`GRACE_S` later.

Nothing of the package is imported, so that it starts at once.

Not covered: children of the command that leave its process group; systems other than Linux, where a host
whose forks live on keeps the command running.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading

GRACE_S = 10.0
"""Between SIGTERM and SIGKILL."""

_PR_SET_PDEATHSIG = 1


def main(host: int, command: list[str]) -> int:
    """Exit code of the command; 128 and the signal's number where one ended it."""
    over, ended = threading.Event(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the host's to handle
    _when_parent_dies(signal.SIGTERM)
    if os.getppid() != host:
        return 1
    me = os.getpid()

    def tie() -> None:
        _when_parent_dies(signal.SIGKILL)
        if os.getppid() != me:
            os._exit(1)

    try:
        server = subprocess.Popen(  # there is no thread yet, so that `tie` is safe
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=tie,  # noqa: PLW1509
        )
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error}\n")
        return 127
    threading.Thread(target=_until_closed, args=(over,), daemon=True).start()
    threading.Thread(target=_until_ended, args=(server.pid, over, ended), daemon=True).start()
    over.wait()
    _signal(server.pid, signal.SIGTERM)
    ended.wait(GRACE_S)
    _signal(server.pid, signal.SIGKILL)  # also what a leader that is gone has left of its group
    server.wait()
    return server.returncode if server.returncode >= 0 else 128 - server.returncode


def _until_ended(pid: int, over: threading.Event, ended: threading.Event) -> None:
    """Waits without reaping: until `main` does, nobody else can have this number for a process or group."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    ended.set()
    over.set()


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # nobody is left
        os.killpg(group, number)


def _until_closed(over: threading.Event) -> None:
    while os.read(0, 4096):
        pass
    over.set()


def _when_parent_dies(number: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
