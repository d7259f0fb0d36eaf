"""The harness files that ship with this package, as text.

    shipped_harnesses()["chess_puzzles"]

Not covered: loading one, see `host.py`.
"""

from importlib.resources import files


def shipped_harnesses() -> dict[str, str]:
    """Source of each domain's h0, by domain."""
    folder = files("whale_bench.harness") / "h0"
    return {
        entry.name.removesuffix(".py"): entry.read_text(encoding="utf-8")
        for entry in sorted(folder.iterdir(), key=lambda e: e.name)
        if entry.name.endswith(".py") and not entry.name.startswith("_")
    }
