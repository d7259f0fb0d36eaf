"""What the base install weighs and how fast it starts.

    python benchmarks/footprint.py

Installs the checkout into a new virtual environment without extras (as a user does), and prints the
size of site-packages with bytecode (pip and setuptools, which the environment came with, apart), the
largest packages, and the median CPU seconds of the imports and of --help, in new processes.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPEATS = 9
TOOLS = ("pip", "setuptools", "pkg_resources")


def cpu_seconds(command: list[str]) -> float:
    """User and system CPU of one child process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def size(path: Path) -> int:
    """Bytes of a file or of all files of a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(f.stat().st_size for f in path.rglob("*") if f.is_file())


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        venv = Path(folder) / "venv"
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        pip = [venv / "bin" / "pip", "install", "-q", "--disable-pip-version-check", ROOT]
        subprocess.run(pip, check=True, env=environment, stderr=subprocess.DEVNULL)
        site = next((venv / "lib").glob("python3*/site-packages"))
        compile_all = [venv / "bin" / "python", "-m", "compileall", "-q", site]
        subprocess.run(compile_all, check=False, env=environment)
        sizes = {entry.name: size(entry) for entry in site.iterdir()}
        tools = sum(b for name, b in sizes.items() if name.split("-")[0] in TOOLS)
        total = sum(sizes.values())
        print(f"site-packages {(total - tools) / 1e6:.0f} MB, and {tools / 1e6:.0f} MB of pip and setuptools")
        largest = sorted(sizes.items(), key=lambda item: -item[1])[:8]
        print("  " + ", ".join(f"{name} {b / 1e6:.0f}" for name, b in largest))
        python = str(venv / "bin" / "python")
        commands = {
            "import numpy": [python, "-c", "import numpy"],
            "import gymnasium": [python, "-c", "import gymnasium"],
            "import whale_envs": [python, "-c", "import whale_envs"],
            "import whale_bench": [python, "-c", "import whale_bench"],
            "whale-bench --help": [str(venv / "bin" / "whale-bench"), "--help"],
        }
        for name, command in commands.items():
            seconds = statistics.median(cpu_seconds(command) for _ in range(REPEATS))
            print(f"{name:20} {seconds:.3f} s CPU")


if __name__ == "__main__":
    main()
