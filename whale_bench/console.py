"""What every console script of the suite shares: its exit codes, and errors as one line.

    def main() -> None:
        run_app(app, "whale-bench")

Not covered: commands and what they print.
"""

import io
import sys
from collections.abc import Callable

FINDINGS, MISUSE, INCOMPLETE, INTERRUPTED = 1, 2, 3, 130
"""Exit codes."""


def run_app(app: Callable[[], object], name: str) -> None:
    """Runs a command line: typed errors become one line on stderr and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without UTF-8 gets question marks
            stream.reconfigure(errors="replace")
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        from whale_envs.errors import InfrastructureError, UsageError

        if isinstance(error, UsageError | InfrastructureError):
            sys.stderr.write(f"{name}: {' '.join(str(error).split())}\n")
            sys.exit(MISUSE if isinstance(error, UsageError) else INCOMPLETE)
        raise
