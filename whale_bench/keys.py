"""The keys of a run's rollouts, none of which is held: they follow from the plan.

    keys = Keys.of("test", ["a", "b"], k=8)
    keys["test:b:7"], len(keys)                 # ("b", 7), 16
    settled = Marks(keys)
    settled.add("test:b:7")

A run of a million rollouts asks for many of its keys many times, and would take 100 bytes for each.

Not covered: what is known of a rollout, see `tally.py`.
"""

from collections.abc import Container, Iterable, Iterator, Mapping


class Keys(Mapping[str, tuple[str, int]]):
    """Every rollout of a run: key -> (example id, sample), in order.

    Args:
        examples: prefix of its keys -> id, of each example.
        k: rollouts of each.
    """

    def __init__(self, examples: Mapping[str, str], k: int) -> None:
        self.examples, self.k = list(examples.values()), k
        self._prefixes = {prefix: number for number, prefix in enumerate(examples)}
        self._samples = {str(sample): sample for sample in range(k)}
        self._last: tuple[str, int | None] = ("", self._find(""))
        """Asked for last: whoever reads a line asks for its key several times."""

    @classmethod
    def of(cls, split: str, examples: Iterable[str], k: int) -> "Keys":
        """The keys that an evaluation gives its rollouts."""
        return cls({f"{split}:{example_id}": example_id for example_id in examples}, k)

    def place(self, key: str) -> int | None:
        """Its number among the keys, from 0; None for a key of another run."""
        last, place = self._last
        if key is not last:
            place = self._find(key)
            self._last = (key, place)
        return place

    def _find(self, key: str) -> int | None:
        prefix, _, sample = key.rpartition(":")
        example, number = self._prefixes.get(prefix), self._samples.get(sample)
        return None if example is None or number is None else example * self.k + number

    def __getitem__(self, key: str) -> tuple[str, int]:
        place = self.place(key)
        if place is None:
            raise KeyError(key)
        return self.examples[place // self.k], place % self.k

    def __iter__(self) -> Iterator[str]:
        return (f"{prefix}:{sample}" for prefix in self._prefixes for sample in self._samples)

    def __len__(self) -> int:
        return len(self._prefixes) * self.k


class Marks(Container[str]):
    """A set of a run's keys, a byte for each that there could be; keys of other runs never get in."""

    def __init__(self, keys: Keys, marked: Iterable[str] = ()) -> None:
        self._keys = keys
        self._marks = bytearray(len(keys))
        for key in marked:
            self.add(key)

    def add(self, key: str) -> None:
        place = self._keys.place(key)
        if place is not None:
            self._marks[place] = 1

    def __contains__(self, key: object) -> bool:
        place = self._keys.place(key) if isinstance(key, str) else None
        return place is not None and self._marks[place] == 1
