"""What a bundle says of itself cannot be what no run writes, though every digest fits."""

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from board_fakes import ABOUT, Forger
from whale_leaderboard.comparing import first_difference
from whale_leaderboard.layout import About, Manifest, is_fixture
from whale_leaderboard.ranking import why_not
from whale_leaderboard.report import Finding
from whale_leaderboard.rows import read_rollout
from whale_leaderboard.verify import verify

from whale_bench.models.registry import KINDS, load_backend
from whale_bench.store import settings_id

TEST, LEDGER = "test.jsonl", "runs/0/ledger.jsonl"


def the_refusal(folder: Path) -> Finding:
    found = [finding for finding in verify(folder, level=1).findings if finding.refuses]
    assert found
    return found[-1]


# --- fixtures -----------------------------------------------------------------------------------------


def renamed(forger: Forger, **settings: Any) -> None:
    """Puts values into the test run's settings and the manifest, under a settings' id that fits."""
    path = forger.folder / "runs/0/run.toml"
    text = path.read_text()
    for name, value in settings.items():
        text, count = re.subn(rf"(?m)^{name} = .*$", f"{name} = {json.dumps(value)}", text)
        assert count == 1
    old = tomllib.loads(text)
    path.write_text(text.replace(old["settings_id"], settings_id(old)))
    forger.manifest(lambda m: m["runs"][0].update(settings_id=settings_id(old)) or m.update(settings))


@pytest.mark.parametrize("named", [{}, {"model": "local/a-model"}], ids=["by both names", "by its weights"])
def test_a_scripted_model_is_a_fixture_whatever_its_flag_says(
    named: dict[str, str], plain: Path, tmp_path: Path
) -> None:
    forger = Forger(plain, tmp_path / "forged")
    renamed(forger, fixture=False, **named)
    forger.seal()
    found = the_refusal(forger.folder)
    assert (found.code, found.place) == ("settings", "runs/0/run.toml")
    assert "is a fixture" in found.message


def test_it_is_not_ranked_on_a_reports_word_either(plain: Path) -> None:
    report = verify(plain, level=1)
    assert report.manifest is not None
    denied = msgspec.structs.replace(report.manifest, fixture=False)
    assert "fixture" in why_not(msgspec.structs.replace(report, manifest=denied))


def test_the_names_of_the_scripted_models_say_so() -> None:
    names = [name.replace(":P", ":0.5") for name in KINDS if name.startswith("scripted/")]
    for model in map(load_backend, names):
        assert model.fixture
        assert is_fixture(model.name, "sha256:0")
        assert is_fixture("local/x", model.weights_id)
    assert len(names) > 2
    assert not is_fixture("local/scripted/x", "remote:scripted:x")


# --- numbers and words of a rollout -------------------------------------------------------------------


def metric(name: str, value: float) -> Callable[[dict[str, Any]], None]:
    return lambda row: row["metrics"].update({name: value})


def call(**parts: Any) -> Callable[[dict[str, Any]], None]:
    return lambda row: row["segments"][0].update(parts)


ROWS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "a metric beyond all numbers": (metric("legal_rate", 1e308), r"<= 1e15|<= 1000000000000000"),
    "a metric below them": (metric("legal_rate", -1e16), r">= -1"),
    "a metric of no name": (metric("", 1.0), "matching regex"),
    "a metric of markup": (metric("<img src=x>", 1.0), "matching regex"),
    "a metric that turns": (metric("a\u202eb", 1.0), "matching regex"),
    "a metric of a long name": (metric("a" * 65, 1.0), "matching regex"),
    "metrics without end": (lambda row: row.update(metrics={f"m{n}": 1.0 for n in range(33)}), "<= 32"),
    "a group without end": (lambda row: row.update(groups=[["band", "x" * 257]]), "<= 256"),
    "known tokens below none": (lambda row: row.update(known_prompt_tokens=-1), ">= 0"),
    "read from a cache below none": (call(cache_read_tokens=-5), ">= 0"),
    "read from a cache beyond all": (call(cache_read_tokens=10**18), "<= 9007199254740992"),
    "written to it beyond all": (call(cache_write_tokens=10**18), "<= 9007199254740992"),
    "more from a cache than was sent": (
        call(cache_read_tokens=900, cache_write_tokens=1, prompt_tokens=900),
        r"call 1 that cannot be: 901 of 900 prompt tokens",
    ),
    "an end of markup": (call(finish_reason="<b>x"), "<b>x"),
    "an id below none": (call(prompt_ids=[1, -2]), ">= 0"),
    "a likelihood above 1": (call(sampled_ids=[1], logprobs=[5.0]), "<= 0.01"),
    "likelihoods of no tokens": (call(logprobs=[-0.5]), r"call 1 that cannot be: 1 logprobs of 0"),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_rollout_with_a_value_that_no_run_writes_is_refused(name: str, plain: Path, tmp_path: Path) -> None:
    change, said = ROWS[name]
    row = json.loads((plain / TEST).read_bytes().splitlines()[2])
    read_rollout(msgspec.json.encode(row))
    change(row)
    with pytest.raises(ValueError, match=said):
        read_rollout(msgspec.json.encode(row))


def test_a_whole_bundle_with_one_is_refused_at_its_line(plain: Path, tmp_path: Path) -> None:
    forger = Forger(plain, tmp_path / "forged")
    forger.replace_row(3, metric("legal_rate", 1e308))
    found = the_refusal(forger.folder)
    assert (found.code, found.place) == ("rollout", f"{TEST}:3")


def test_a_reply_that_stands_twice_in_a_call_is_no_backends(plain: Path) -> None:
    """As what was sampled says it already, no run writes it a second time."""
    line = (plain / TEST).read_bytes().splitlines()[2]
    row = read_rollout(line)
    assert first_difference(row, row, searched=False) == ""
    first = row.segments[0]
    for part in ({"reply": first.text}, {"finish_reason": "length"}, {"cache_read_tokens": 1}):
        calls = (msgspec.structs.replace(first, **part), *row.segments[1:])
        then = msgspec.structs.replace(row, segments=calls)
        assert first_difference(row, then, searched=False).startswith(f"call 1: its {next(iter(part))} ")


# --- times and names ----------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [-6.2e10, 0.0, 1_577_836_799.0, 4_102_444_800.0, 2.5e11, 1e300])
def test_a_time_of_another_age_is_refused(at: float, plain: Path, tmp_path: Path) -> None:
    forger = Forger(plain, tmp_path / "forged")
    last = len(forger.lines(LEDGER))
    forger.edit(LEDGER, last, lambda event: event.update(at=at))
    forger.rechain()
    forger.seal()
    found = the_refusal(forger.folder)
    assert (found.code, found.place) == ("event", f"{LEDGER}:{last}")


BLANK = [" ", "\u2800\u3164 ", "\u200c\u200d", "\ufe0f\u115f\u1160", "\U000e0101\u034f\n", "\u2066\u2069"]


@pytest.mark.parametrize("name", BLANK, ids=ascii)
@pytest.mark.parametrize("field", ["agent", "licence", "hardware", "authors"])
def test_a_name_of_which_nothing_can_be_seen_is_none(field: str, name: str, plain: Path) -> None:
    about = msgspec.to_builtins(ABOUT) | {field: ["A. Author", name] if field == "authors" else name}
    with pytest.raises(msgspec.ValidationError, match=f"nothing can be seen of `{field}`"):
        msgspec.convert(about, About)
    manifest = json.loads((plain / "manifest.json").read_bytes()) | {"about": about}
    with pytest.raises(msgspec.ValidationError, match=f"`{field}`"):
        msgspec.json.decode(json.dumps(manifest), type=Manifest)


@pytest.mark.parametrize("name", ["Ω", "עברית", "नमस्ते\u200d", "🐋\ufe0f", "."])
def test_a_name_with_something_to_be_seen_is_one(name: str) -> None:
    assert msgspec.convert(msgspec.to_builtins(ABOUT) | {"agent": name}, About).agent == name
