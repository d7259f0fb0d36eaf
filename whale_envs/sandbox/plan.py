"""What a sandbox is started with: limits, libraries, and the process itself.

    >>> Limits(memory_mb=512).memory_mb
    512

Nothing of the host goes along: neither environment, nor files, nor open descriptors but one socket.

Not covered: reading /etc; programs see no host names, users or certificates.
"""

import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO

from whale_envs.errors import InfrastructureError, UnconfinedError, UsageError

PACKAGES = ("numpy", "sympy", "mpmath", "gmpy2", "scipy")
"""Offered to programs where they are installed, and nothing else from package folders is."""

_ALL_PROCESSES = 1024
"""Processes and threads at a time, of all calls together."""

_YOUNG_PER_CORE = 4
"""Programs that have just begun, at a time; the rest wait, before their time limit begins."""

_PRELOAD = (
    *("bisect", "cmath", "collections", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions"),
    *("functools", "heapq", "inspect", "io", "itertools", "json", "linecache", "math", "operator", "os"),
    *("random", "re", "statistics", "string", "struct", "subprocess", "textwrap", "threading", "time"),
    *("traceback", "types", "typing", "numpy", "sympy", "scipy"),
)

_ANONYMOUS = """
import importlib.machinery
loader = importlib.machinery.SourceFileLoader
def code(self, name, found=loader.get_code):
    if not name.startswith("whale_envs."):
        return found(self, name)
    shown = f"<sandbox {name.rpartition('.')[2]}>"  # programs see these frames, and no path of ours
    return compile(self.get_data(self.path), shown, "exec", dont_inherit=True)
loader.get_code = code
"""
_NAMED_AGAIN = """
import whale_envs.sandbox.warm.supervisor
del loader.get_code
main("""
_BOOT = """
import sys, types
for name, path in zip(("whale_envs", "whale_envs.sandbox"), sys.argv[2:]):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
from whale_envs.sandbox.warm.MODULE import main
main(int(sys.argv[1]))
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of each call, for all of its processes together unless said otherwise."""

    memory_mb: int = 1024
    """Beyond what the warm parent maps; also of each process's address space."""
    processes: int = 24
    """Processes and threads at a time."""
    scratch_mb: int = 64
    """Size of the scratch folder, and of each file."""
    files: int = 4096
    """Files and folders in the scratch folder."""
    descriptors: int = 64
    """Open files of each process; each may hold some 200 KB of memory in the kernel."""
    output_mb: int = 16
    """Written to both streams; the program is ended beyond."""
    kept_kb: int = 64
    """Kept of each stream, half of it from either end."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is not int or not 1 <= value <= 1_048_576:
                raise UsageError(f"{field.name} must be an integer from 1 to 1048576, got {value!r}")


@dataclass(frozen=True, slots=True)
class Settings:
    limits: Limits
    concurrent: int
    sessions: int
    session_seconds: float
    unsafe: bool
    without: tuple[str, ...]


def start(settings: Settings) -> tuple["subprocess.Popen[bytes]", socket.socket, IO[bytes]]:
    """Starts the keeper; returns it, the control socket, and the file of its complaints.

    Raises:
        InfrastructureError: no process can be started.
        UnconfinedError: this system cannot fork.
    """
    return launch(
        "keeper", _config(settings), what="the Python tool", stdin=subprocess.DEVNULL, anonymous=True
    )


def launch(
    module: str, config: Mapping[str, object], *, what: str, stdin: int, anonymous: bool = False
) -> tuple["subprocess.Popen[bytes]", socket.socket, IO[bytes]]:
    """A bare interpreter that runs `main` of a module of `warm`, which reads `config` from its socket.

    `anonymous`: its frames show no path of ours, at the cost of compiling it anew.

    Raises:
        InfrastructureError: no process can be started.
        UnconfinedError: this system cannot fork; `what` is what needs it.
    """
    if not hasattr(os, "fork"):
        raise UnconfinedError(f"{what} needs a system that can fork, not {sys.platform}")
    ours, theirs = socket.socketpair()
    complaints = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    folder = Path(__file__).resolve().parent
    base = getattr(sys, "_base_executable", sys.executable) or sys.executable
    boot = _BOOT.replace("MODULE", module)
    if anonymous:
        boot = f"{_ANONYMOUS}{boot}".replace("\nmain(", _NAMED_AGAIN)
    command = [base, "-s", "-S", "-P", "-B", "-c", boot, str(theirs.fileno())]
    try:
        process = subprocess.Popen(
            [*command, str(folder.parent), str(folder)],
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            stderr=complaints,
            pass_fds=[theirs.fileno()],
            env=_clean_environment(),
            cwd="/",
        )
    except OSError as error:
        ours.close()
        complaints.close()
        raise InfrastructureError(f"cannot start {what}'s process: {error}") from error
    finally:
        theirs.close()
    with contextlib.suppress(OSError):
        ours.sendall(json.dumps(config).encode() + b"\n")
    return process, ours, complaints


def _clean_environment() -> dict[str, str]:
    """What the interpreter and its numeric libraries read before the template takes over.

    A fixed hash seed, so that a program gives the same output again; `-I` would ignore it, hence the
    single switches.
    """
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")}
    library = {n: os.environ[n] for n in ("LD_LIBRARY_PATH",) if n in os.environ}
    return {
        "PYTHONHASHSEED": "0",
        "LD_BIND_NOW": "1",
        "LANG": "C.UTF-8",
        "PATH": "/usr/bin:/bin",
        **threads,
        **library,
    }


def _config(settings: Settings) -> dict[str, object]:
    found, sites = _find(PACKAGES)
    cpus = os.cpu_count() or 1
    return {
        "host_pid": os.getpid(),
        "prefix": sys.base_prefix,
        "packages": found,
        "sites": sites,
        "hidden": hidden_folders(sites),
        "preload": _PRELOAD,
        "limits": asdict(settings.limits),
        "without": settings.without,
        "total_processes": max(_ALL_PROCESSES, settings.limits.processes),
        "young": _YOUNG_PER_CORE * cpus,
        "cores": cpus,
        "spares": min(8, cpus + 2),
        "concurrent": settings.concurrent,
        "sessions": settings.sessions,
        "session_seconds": settings.session_seconds,
        "total_mb": max(256, _available_mb() // 2),
        "scratch": str(Path(tempfile.gettempdir()) / f"whale-sandbox-{os.getpid()}-{os.urandom(4).hex()}"),
    }


def hidden_folders(sites: Iterable[str]) -> list[str]:
    """What must not show inside: this project, those folders, and whatever else can be imported from."""
    stdlib = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    ours = Path(__file__).resolve().parents[2]
    others = (path for path in sys.path if path and Path(path).is_dir() and not _standard(path, stdlib))
    return sorted({str(ours), *sites, *others})


def _standard(path: str, stdlib: Iterable[str]) -> bool:
    return any(path == root or Path(path) == Path(root, "lib-dynload") for root in stdlib)


def _find(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """(what to offer, the folders it lies in) of those packages that are installed."""
    found: list[str] = []
    sites: list[str] = []
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            continue
        package = Path(spec.origin).resolve()
        package = package.parent if package.name == "__init__.py" else package
        site = package.parent
        beside = [site / f"{name}.libs", *site.glob(f"{name}-*.dist-info")]
        found += [str(path) for path in (package, *beside) if path.exists()]
        if str(site) not in sites:
            sites.append(str(site))
    return found, sites


def _available_mb() -> int:
    """Memory that is free, or that a control group leaves, in MB."""
    most = 4096
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        most = int(text.partition("MemAvailable:")[2].split()[0]) // 1024
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            most = min(most, int(Path(name).read_text(encoding="ascii")) >> 20)
    return most
