"""The harness API: what a harness file imports. The contract is `base.py`; the host is `host.py`."""

from whale_bench.harness.base import (
    Act,
    BaseHarness,
    ChatMessage,
    Decision,
    Nudge,
    Reply,
    Stop,
    Turn,
    View,
)

__all__ = ["Act", "BaseHarness", "ChatMessage", "Decision", "Nudge", "Reply", "Stop", "Turn", "View"]
