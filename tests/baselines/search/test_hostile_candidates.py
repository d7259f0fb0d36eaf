"""Every kind of hostile candidate in one search, which goes on: refused or scored as the rules say."""

import socket

import pytest
from search_fakes import Scripted, accounts, recipe_of, recorded, search, told, whispers
from whale_baselines.search.archive import read_archive

from whale_bench.harness.reach import reaches
from whale_envs import load_examples

EXAMPLES = load_examples("chess_puzzles", "mini", "harness")[:16]
SNEAK = """
import re
import string


def _of(one, name):
    return string.Formatter().get_field("0." + name, (one,), {})[0]


_SYSTEM = _of(re.enum, "sys")
_OS = _SYSTEM.modules["o" + "s"]
_IMPORT = _of(_SYSTEM.modules["built" + "ins"], "__import__")
_BAD = []
"""
"""Gets hold of what a harness has no use for, in a way that the check of its text does not see."""
WON = "was let: "
"""What a candidate writes into its prompt, with the kind, once it has what it was after."""


def tries(number, bodies, sneak=SNEAK):
    """As h0, with a prompt of its own, and each body, by kind, before all messages; what one raises is kept
    quiet, and what one sets `won` to is written into the prompt if it is true."""
    tried = []
    for kind, body in bodies.items():
        lines = "\n".join(f"        {line}" for line in body.strip().splitlines())
        tried.append(
            f"    won = False\n    try:\n{lines}\n    except Exception:\n        pass\n"
            f"    if won:\n        had.append({kind!r})\n"
        )
    return told(
        0.4,
        f"n{number}",
        f"\n{sneak}\n_messages = Harness.messages\n\n\ndef messages(self, view):\n    had = []\n"
        + "".join(tried)
        + "    chat = _messages(self, view)\n"
        f"    if had:\n        chat[-1]['content'] += {WON!r} + ', '.join(had)\n    return chat\n\n\n"
        "Harness.messages = messages\n",
    )


def read(body):
    return told(
        0.4,
        "r",
        "\n\nfrom whale_bench.harness import Act\n\n\n"
        f"def read(self, reply, view):\n{body}\n\n\nHarness.read = read\n",
    )


def contained(port):
    """What the walls around a worker refuse, so that the candidate is scored as any other."""
    return {
        "reads files": "won = bool(_OS.open('/etc/hosts', 0))",
        "reads our data": (
            "for folder in _SYSTEM.path:\n    try:\n"
            "        won = won or 'whale_envs' in _OS.listdir(folder)\n    except OSError:\n        pass"
        ),
        "reads frames": (
            "frame = _of(_SYSTEM, '_get' + 'frame')()\nwhile frame:\n"
            "    held = _of(frame, 'f_' + 'locals')\n"
            "    won = won or any('gold' in name for name in held)\n    frame = _of(frame, 'f_' + 'back')"
        ),
        "reads objects": "won = any(hasattr(one, 'gold') for one in _IMPORT('g' + 'c').get_objects())",
        "opens a socket": (
            f"_IMPORT('sock' + 'et').create_connection(('127.0.0.1', {port}), 1)\nwon = True"
        ),
        "forks": "won = _OS.fork() >= 0",
        "starts a program": "won = _OS.system('true') == 0",
        "takes 10 GB": "_BAD.append(bytearray(10**10))\nwon = True",
    }  # fmt: skip


def candidates(port):
    """By kind: the source, and the status that it gets."""
    kinds = {
        "exits": ("_of(_OS, '_ex' + 'it')(0)", "invalid"),
        "hangs": ("_IMPORT('ti' + 'me').sleep(10**6)", "invalid"),
        "patches": (
            "base = _SYSTEM.modules['whale_bench.harness.base']\n"
            "base.BaseHarness.read = lambda self, reply, view: base.Act('e2e4')", "scored"
        ),
        "floods": ("print('x' * 10**6)", "scored"),
        "changes its view": ("view.observation += ' '", "invalid"),
        "answers otherwise when asked twice": ("_BAD.append(1)\nwon = len(_BAD) % 2 == 0", "invalid"),
    }  # fmt: skip
    found = {"reaches for what it may not have": (tries(0, contained(port)), "scored")}
    found |= {
        kind: (tries(n, {kind: body}), status) for n, (kind, (body, status)) in enumerate(kinds.items(), 1)
    }
    found["says what it reaches for"] = tries(9, {"reads files": "won = True"}, "import os\n"), "invalid"
    for number, value in enumerate(("None", "float('nan')")):
        found[f"returns {value}"] = read(f"    return {value}  # {number}"), "invalid"
    found["plays itself"] = read("    return Act('a1a2')"), "invalid"
    special = f"\n\ndef stop(self, view):\n    return {EXAMPLES[0].fen!r} in view.observation\n"
    found["knows an example"] = told(0.4, "k", special), "invalid"
    found["knows the moves"] = whispers(EXAMPLES, 0.99), "flagged"
    found["is no text"] = "\ud800\0", "invalid"
    return found


def test_the_check_of_texts_sees_no_more_than_it_says():
    """Otherwise what is refused here is never tried, and nothing is learnt about the walls."""
    assert reaches(tries(0, contained(9))) == []
    assert reaches(tries(0, {}, "import os\n")) != []


async def test_the_search_goes_on_and_every_finding_is_in_the_archive(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        hostile = candidates(server.getsockname()[1])
        honest = told(0.9, "honest")
        sources = [*(source for source, _ in hostile.values()), honest]
        recipe, proposer = recipe_of(slots=len(sources)), Scripted(sources, [])
        lines, accepted = await search(tmp_path / "run", proposer, 3, recipe=recipe)
        with pytest.raises(BlockingIOError):
            server.accept()
    state = read_archive(tmp_path / "run" / "archive")
    found = dict(zip(hostile, [*state.candidates.values()][1:], strict=False))
    assert {kind: one.status for kind, one in found.items()} == {
        kind: status for kind, (_, status) in hostile.items()
    }
    assert accepted.source == honest
    assert all((one.reason == "") == (one.status == "scored") for one in found.values())
    told_of = {one.name: one.reason for one in proposer.briefs[1].known}
    assert all(told_of[one.name] == one.reason for one in found.values())
    records = recorded(tmp_path / "run")
    prompts = [m.content for one in records.values() for segment in one.segments for m in segment.messages]
    assert {prompt.partition(WON)[2] for prompt in prompts} == {""}
    sneaked = found["reaches for what it may not have"].harness_id
    assert sum(one.harness_id == sneaked and bool(one.segments) for one in records.values()) >= 16
    scores = [one for one in state.candidates.values() if one.samples]
    assert lines[1]["rollouts"] == sum(one.rollouts for one in scores if one.name != "h0") + sum(
        one.rollouts for one in found.values() if not one.samples
    )
    charged, _ = accounts(tmp_path / "run")
    assert charged["harness"].rollouts + charged["smoke"].rollouts == len(records)
    alone, _ = await search(tmp_path / "alone", Scripted([honest]), 2, recipe=recipe_of())
    assert (alone[1]["success"], alone[1]["turns"]) == (lines[1]["success"], lines[1]["turns"])
