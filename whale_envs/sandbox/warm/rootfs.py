"""What a child may read: Python, its libraries, system libraries and programs; and nothing else.

    rootfs.enter(plan)        # in a mount namespace of our own: the new root, read-only

The plan names the interpreter's prefix and the few packages that programs may import. Folders where
packages are installed are covered by empty ones, with only the named packages put back, so that the
grader's own code and data, which lie beside them, are not there. Without a mount namespace
`readable` gives the same as a list for Landlock.

Not covered: a secret that somebody stores under /usr/lib or /usr/bin.
"""

import contextlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from whale_envs.sandbox.warm import linux

_SYSTEM = ("/bin", "/lib", "/lib32", "/lib64", "/usr/bin", "/usr/lib", "/usr/lib32", "/usr/lib64")
_FILES = ("/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo")
_DEVICES = ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom")
SCRATCH = "/scratch"
"""Where a child may write. /tmp is another name for it, unless libraries lie there."""

_PACKAGE_FOLDERS = ("site-packages", "dist-packages")
_USERS = f"root:x:0:0::{SCRATCH}:/bin/sh\nnobody:x:65534:65534::{SCRATCH}:/bin/sh\n"


@dataclass(frozen=True, slots=True)
class Plan:
    prefix: str
    """Where the base interpreter is installed."""
    packages: tuple[str, ...]
    """Folders and files to offer from package folders."""
    hidden: tuple[str, ...]
    """Folders that must not show, beside the package folders found here."""


def _trees(plan: Plan) -> list[str]:
    """Folders and files that are offered, links included; shorter paths first."""
    own = [str(Path(plan.prefix, name)) for name in ("bin", "lib", "lib64")]
    trees = {path for path in (*_SYSTEM, *own, *_FILES, *_mapped()) if os.path.lexists(path)}
    return sorted(trees, key=lambda path: (path.count("/"), path))


def _mapped() -> set[str]:
    """Libraries that this interpreter has loaded, wherever they lie."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return set()
    paths = {line.split(maxsplit=5)[5] for line in lines if line.count("/") and " r-xp " in line}
    return {path for path in paths if path.startswith("/") and ".so" in path}


def _hidden(plan: Plan, trees: list[str]) -> list[str]:
    found = {os.path.realpath(path) for path in plan.hidden}
    for tree in trees:
        if Path(tree).is_dir() and not Path(tree).is_symlink():
            for folder in (Path(tree), *Path(tree).glob("python*")):
                found |= {str(folder / name) for name in _PACKAGE_FOLDERS if (folder / name).is_dir()}
    return sorted(
        path for path in found if any(_inside(path, tree) for tree in trees) and Path(path).is_dir()
    )


def _inside(path: str, tree: str) -> bool:
    return path == tree or path.startswith(tree.rstrip("/") + "/")


def enter(plan: Plan) -> None:
    """Builds the new root and makes it this process's; /proc is still the old one there.

    Raises:
        OSError: the kernel refuses a step; this process's mounts are then in disorder.
    """
    linux.mount(None, "/", None, linux.MS_REC | linux.MS_PRIVATE)
    trees = _trees(plan)
    hidden = _hidden(plan, trees)
    opened = {path: os.open(path, os.O_PATH) for path in (*plan.packages, *_DEVICES, "/proc")}
    opened |= {path: os.open(path, os.O_PATH) for path in trees if not Path(path).is_symlink()}
    base = os.path.realpath(tempfile.gettempdir())
    linux.mount("tmpfs", base, "tmpfs", linux.MS_NOSUID, "size=8m,mode=755")
    for path in trees:
        if path not in opened and not os.path.lexists(base + path):
            Path(base + path).parent.mkdir(parents=True, exist_ok=True)
            Path(base + path).symlink_to(Path(path).readlink())
        elif path in opened:
            _bind(opened[path], base + path)
    for path in hidden:
        linux.mount("tmpfs", base + path, "tmpfs", linux.MS_NOSUID, "size=8m,mode=755")
    for path in (*plan.packages, *_DEVICES, "/proc"):
        _bind(opened[path], base + path)
    for descriptor in opened.values():
        os.close(descriptor)
    for name in (SCRATCH[1:], "etc", ".old"):
        Path(base, name).mkdir(exist_ok=True)
    Path(base, "dev", "shm").symlink_to(SCRATCH)
    Path(base, "dev", "zero").symlink_to("full")  # reads the same; a map of it would be memory of nobody
    if not Path(base, "tmp").exists():
        Path(base, "tmp").symlink_to(SCRATCH)
    Path(base, "etc", "passwd").write_text(_USERS, encoding="ascii")
    os.chdir(base)
    linux.pivot_root(".", ".old")
    os.chdir("/")
    linux.unmount("/.old")
    Path("/.old").rmdir()
    linux.set_read_only("/", yes=True)
    with contextlib.suppress(OSError):  # or a new one could not be written to either
        linux.set_read_only("/proc", yes=False)


def _bind(source: int, target: str) -> None:
    if Path(target).exists() and _same(source, target):
        return
    if os.stat(source).st_mode & 0o170000 == 0o040000:
        Path(target).mkdir(parents=True, exist_ok=True)
    else:
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        Path(target).touch()
    linux.mount(f"/proc/self/fd/{source}", target, None, linux.MS_BIND | linux.MS_REC)


def _same(source: int, target: str) -> bool:
    ours, theirs = os.stat(source), Path(target).stat()
    return (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino)


def open_own_proc() -> int | None:
    """Mounts this pid namespace's /proc over the old one and returns a descriptor of it.

    Returns None where the kernel does not grant the mount.
    """
    try:
        linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV)
        return os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None


def hide_proc() -> None:
    """Covers /proc with an empty folder.

    Raises:
        OSError: the kernel refuses; then nothing may be run here.
    """
    linux.mount("tmpfs", "/proc", "tmpfs", linux.MS_NOSUID | linux.MS_RDONLY, "size=4k,mode=555")


def readable(plan: Plan) -> list[str]:
    """What `enter` would show, as paths that hold nothing hidden."""
    trees = [path for path in _trees(plan) if not Path(path).is_symlink()]
    hidden = _hidden(plan, trees)
    shown = [path for tree in trees for path in _without(tree, hidden)]
    return [*shown, *plan.packages, *(path for path in _DEVICES if Path(path).exists())]


def _without(path: str, hidden: list[str]) -> list[str]:
    if path in hidden:
        return []
    if not any(_inside(other, path) for other in hidden):
        return [path]
    names = sorted(entry.name for entry in os.scandir(path))
    return [shown for name in names for shown in _without(str(Path(path, name)), hidden)]
