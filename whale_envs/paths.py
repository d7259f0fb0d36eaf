"""Where this project keeps what it fetches or builds once: one folder per user.

    cache_dir() / "models" / "smollm2"

Not covered: run folders and results, which a command line names itself.
"""

import os
from pathlib import Path


def cache_dir() -> Path:
    """$WHALE_CACHE, else $XDG_CACHE_HOME/whale-envs, else ~/.cache/whale-envs; not created here.

    An empty variable counts as unset, as the XDG base directory specification says.
    """
    if own := os.environ.get("WHALE_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "whale-envs"
