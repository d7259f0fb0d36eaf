"""The sample: the submitted agent's dev rollouts, and of the others what a slow hash chooses."""

import hashlib
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from whale_leaderboard import sampling
from whale_leaderboard.layout import Charged
from whale_leaderboard.sampling import MOST_OWN, SAMPLE, Sample, commitment

AGENT = ("sha256:mine", "sha256:h")


def record(number: int, purpose: str, weights: str, harness: str = AGENT[1]) -> Charged:
    return Charged(
        key=f"{purpose}:{number}", purpose=purpose, example_id="e", sample=0, weights_id=weights,
        harness_id=harness, prompt_tokens=1, sampled_tokens=1, model_calls=1, reward=0.0, reason="wrong",
        digest="0" * 64,
    )  # fmt: skip


def smallest(keys: list[str], salt: bytes, most: int) -> set[str]:
    """As a plain sort has it."""
    return set(sorted(keys, key=lambda key: hashlib.sha256(salt + key.encode()).digest()[:8])[:most])


kinds = st.sampled_from(
    [("dev", AGENT[0]), ("dev", "sha256:other"), ("weight", AGENT[0]), ("smoke", AGENT[0])]
)


@given(
    st.lists(kinds, max_size=60), st.integers(1, 20), st.integers(1, 20), st.binary(min_size=32, max_size=32)
)
def test_each_draw_is_of_the_smallest_hashes_in_the_order_of_the_records(
    rows: list[tuple[str, str]], most: int, most_own: int, salt: bytes
) -> None:
    sample = Sample(AGENT, lambda: salt, most=most, most_own=most_own)
    kept: dict[str, Charged] = {}
    records = [record(number, *row) for number, row in enumerate(rows)]
    for one in records:
        out = sample.offer(one)
        if out != one.key:
            kept[one.key] = one
        if out is not None:
            kept.pop(out, None)
    own = [one.key for one in records if (one.purpose, one.weights_id) == ("dev", AGENT[0])]
    others = [one.key for one in records if one.key not in own]
    wanted = smallest(own, salt, most_own) | smallest(others, salt, most)
    assert sample.chosen() == [one.key for one in records if one.key in wanted]
    assert kept.keys() == wanted  # memory holds the chosen ones alone


def test_no_draw_decides_about_the_rollouts_that_selected_the_agent() -> None:
    """However many others there are, and whatever the hash."""
    for salt in (b"a" * 32, b"b" * 32):
        sample = Sample(AGENT, lambda salt=salt: salt)
        for number in range(4_000):
            sample.offer(record(number, "dev", AGENT[0] if number % 4 == 0 else "sha256:other"))
        chosen = sample.chosen()
        assert {f"dev:{number}" for number in range(0, 4_000, 4)} <= set(chosen)
        assert len(chosen) == 1_000 + SAMPLE
    assert MOST_OWN > 1_000


def test_another_harness_is_another_agent() -> None:
    sample = Sample(AGENT, lambda: b"", most=1, most_own=1)
    sample.offer(record(1, "dev", AGENT[0]))
    assert sample.offer(record(2, "dev", AGENT[0], "sha256:other")) is None
    assert sample.offer(record(3, "dev", AGENT[0], "sha256:third")) is not None


def test_nothing_slow_is_done_where_there_is_no_choice() -> None:
    def never() -> bytes:
        raise AssertionError("was asked for")

    sample = Sample(AGENT, never)
    for number in range(SAMPLE):
        sample.offer(record(number, "weight", AGENT[0]))
        sample.offer(record(number, "dev", AGENT[0]))
    assert len(sample.chosen()) == 2 * SAMPLE
    with pytest.raises(AssertionError, match="asked for"):
        sample.offer(record(SAMPLE, "weight", AGENT[0]))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, int]]]:
    """Costs of the hashes that were made."""
    costs: list[dict[str, int]] = []
    slow = hashlib.scrypt

    def watched(password: bytes, **how: int) -> bytes:
        costs.append(how)
        return slow(password, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(sampling.hashlib, "scrypt", watched)
    commitment.cache_clear()
    yield costs
    commitment.cache_clear()


def test_a_draw_costs_a_slow_hash_each_time(asked: list[dict[str, int]]) -> None:
    """Whoever looks for a ledger whose sample suits pays it for each; packing and verifying have it once."""
    digests = [hashlib.sha256(bytes([n])).hexdigest() for n in range(3)]
    salts = {commitment(digests[0], digests[1]), commitment(digests[0], digests[2])}
    assert len(salts) == len(asked) == 2
    assert commitment(digests[0], digests[1]) in salts
    assert len(asked) == 2
    for how in asked:
        assert how["n"] * how["r"] * how["p"] * 128 >= 128 * 2**20  # bytes that are filled and read, at least
        assert how["n"] * how["r"] * 128 <= 16 * 2**20  # bytes of memory, at most
