"""Runs programs inside a jailed child, as a user of Python expects.

The program is `__main__`, standard input is at its end, a traceback shows the program's own lines and
the error, and `sys.exit`, threads and exit handlers work. With a session, variables stay for the next
program.

    child → supervisor: b"R" ready, b"M" out of memory, b"D" + exit status when a session's program ended
    supervisor → child: HEADER, then the program

Nothing that a program writes to that descriptor can hurt but itself: at worst its own session is out
of step.

Not covered: this is no boundary. The program can change everything here.
"""

import atexit
import contextlib
import gc
import io
import linecache
import os
import resource
import signal
import struct
import sys
import threading
import traceback
import types
from typing import NoReturn

HEADER = struct.Struct("<?II")
"""Whether it is a session's, CPU seconds, bytes of the program."""

_TRICKS = 1_000
"""How often a program's hooks may throw into the end of its process."""
_leave, _write = os._exit, os.write  # a program may replace those of the module

_GENERATORS = ("random", "numpy.random")
_sources = [""]

READY, NO_MEMORY, DONE = b"R", b"M", b"D"
NAME = "<code>"
"""File name of the program in tracebacks."""


CONTROL = 3
"""The child's descriptor to the supervisor."""


def prepare() -> dict[str, object]:
    """Once, in the template: streams on the descriptors 0 to 2 and an empty `__main__`.

    Returns the variables of that module. What is made here costs a child nothing.
    """
    sys.stdin = sys.__stdin__ = _text(0, "rb", "surrogateescape")  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _text(1, "wb", "strict")  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _text(2, "wb", "backslashreplace")  # type: ignore[misc]
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = sys.modules["builtins"]
    sys.modules["__main__"] = main
    sys.argv = [""]
    sys.orig_argv[:] = ["python"]
    sys.path.insert(0, "")
    return main.__dict__


def serve(variables: dict[str, object], *, confined: bool) -> NoReturn:
    """Runs one program, or a session's programs until the supervisor ends this process.

    Trace functions, signal handlers and the like may throw into the frames here. That is the program's
    doing and becomes its output.
    """
    status, trick = 1, ""
    try:
        status = _serve(variables, confined=confined)
    except BaseException as error:  # noqa: BLE001 - see above
        trick = f"{type(error).__name__} in a hook of the program\n"
    for _ in range(_TRICKS):
        try:
            _calm()
            if trick:
                _write(2, trick.encode(errors="replace"))
            trick = ""
            _flush()
            break
        except BaseException:  # noqa: BLE001, S112 - see above
            continue
    while True:
        try:
            _leave(status)
        except BaseException:  # noqa: BLE001, S112 - see above
            continue


def _calm() -> None:
    """Switches off what a program left to be called from anywhere."""
    sys.settrace(None)
    sys.setprofile(None)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def _serve(variables: dict[str, object], *, confined: bool) -> int:
    me = os.getpid()
    _write(CONTROL, READY)
    for module in _GENERATORS:
        if module in sys.modules:
            sys.modules[module].seed()  # else all children would draw the same numbers
    gc.enable()
    while True:
        head = _read(HEADER.size)
        if len(head) < HEADER.size:
            return 0
        session, cpu_seconds, size = HEADER.unpack(head)
        text = _read(size)
        if not session:
            _limit_cpu(cpu_seconds)
        status = _run(text, variables)
        if not session:
            return _finish(status)
        _end_call()
        if os.getpid() != me:
            return status
        if confined:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)  # process 1 of this namespace: everyone but me
        _say(DONE + bytes([status & 255]))


def _end_call() -> None:
    """Between a session's programs: threads that Python would wait for have ended, and no timer runs.

    Workers of an executor that was not shut down would wait for ever; they end the session, as any
    other thread that is left does.
    """
    workers = getattr(sys.modules.get("concurrent.futures.thread"), "_threads_queues", ())
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon and thread not in workers:
            thread.join()
    for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
        signal.setitimer(timer, 0)
    _flush()


def _text(descriptor: int, mode: str, errors: str) -> io.TextIOWrapper:
    raw = io.open(descriptor, mode, closefd=False)  # noqa: UP020, SIM115
    return io.TextIOWrapper(raw, encoding="utf-8", errors=errors, line_buffering="w" in mode)


def _read(size: int) -> bytes:
    """That many bytes from the supervisor; fewer only where it has ended."""
    data = os.read(CONTROL, size) if size else b""
    while len(data) < size:
        more = os.read(CONTROL, size - len(data))
        if not more:
            break
        data += more
    return data


def _limit_cpu(seconds: int) -> None:
    most = resource.getrlimit(resource.RLIMIT_CPU)[1]
    if most == resource.RLIM_INFINITY or seconds < most:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))


def _run(text: bytes, variables: dict[str, object]) -> int:
    """Exit status of the program."""
    try:
        source = text.decode("utf-8", "surrogatepass")
        _sources.append(source)
        code = compile(source, NAME, "exec", dont_inherit=True)
        exec(code, variables)  # noqa: S102 - what this process is for
    except SystemExit as leave:
        return _status_of(leave)
    except MemoryError as error:
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        _say(NO_MEMORY)
        traceback.clear_frames(error.__traceback__)
        _show(error)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        return 1
    except BaseException as error:  # noqa: BLE001 - everything a program may raise is its output
        _show(error)
        return 1
    return 0


def _say(word: bytes) -> None:
    with contextlib.suppress(OSError):  # the program closed it; the supervisor will see
        _write(CONTROL, word)


def _status_of(leave: SystemExit) -> int:
    if leave.code is None or isinstance(leave.code, int):
        return (leave.code or 0) & 255
    print(leave.code, file=sys.stderr)  # noqa: T201
    return 1


def _show(error: BaseException) -> None:
    """Writes the traceback, without frames of this module or of libraries."""
    try:
        if sys.excepthook is not sys.__excepthook__:
            sys.excepthook(type(error), error, _own_part(error.__traceback__))
            return
        source = _sources[-1]
        linecache.cache[NAME] = (len(source), None, source.splitlines(keepends=True), NAME)
        report = traceback.TracebackException.from_exception(error, limit=-200)
        _keep_own_lines(report, 0)
        text = "".join(report.format())
    except BaseException as second:  # noqa: BLE001 - an error whose text cannot be made
        text = f"{type(error).__name__} (and {type(second).__name__} while showing it)\n"
    try:
        sys.stdout.flush()
        sys.stderr.write(text)
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001 - the program closed or replaced its streams
        _write(2, text.encode("utf-8", "replace"))


def _own_part(trace: types.TracebackType | None) -> types.TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename != NAME:
        trace = trace.tb_next
    return trace


def _keep_own_lines(report: traceback.TracebackException, depth: int) -> None:
    own = [frame for frame in report.stack if frame.filename == NAME]
    report.stack = traceback.StackSummary.from_list(own)
    if not own and issubclass(report.exc_type, SyntaxError):
        report.stack = None  # type: ignore[assignment]
    linked = [report.__cause__, report.__context__, *(getattr(report, "exceptions", None) or ())]
    for other in linked:
        if other is not None and depth < 50:
            _keep_own_lines(other, depth + 1)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:  # noqa: BLE001, S112 - the program closed or replaced it
            continue


def _finish(status: int) -> int:
    """What the interpreter does at its end: waits for threads, runs exit handlers, flushes."""
    try:
        if threading.active_count() > 1:
            threading._shutdown()  # type: ignore[attr-defined]
        if atexit._ncallbacks():
            atexit._run_exitfuncs()
    except SystemExit as leave:
        status = _status_of(leave)
    except BaseException as error:  # noqa: BLE001 - as the interpreter: shown, and ignored
        _show(error)
    _flush()
    return status
