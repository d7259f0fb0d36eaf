"""Models without weights: fixtures that play from the gold answer, at random, or from a function.

    load_scripted("noisy-oracle:0.5")
    ScriptedModel(lambda request: "<move>e2e4</move>")

`oracle` and `noisy-oracle` look at the running environment on the host's side (`Request.host`);
they test the path that everything else takes, and are refused by every ranking. All are pure
functions of the environment's state and the request's seed.

Not covered: imitating a model's style; their reply is the bare action.
"""

from collections.abc import Callable, Iterable
from random import Random

from whale_bench.models.base import Backend, Generation, Request, Usage
from whale_envs.core import TextEnv
from whale_envs.errors import UnknownNameError, UsageError

NAMES = ("oracle", "random", "noisy-oracle:P")


class ScriptedBackend(Backend):
    """Replies with the environment's oracle action with probability `p_gold`, else a random one."""

    fixture = True

    def __init__(self, name: str, p_gold: float) -> None:
        self.name = f"scripted/{name}"
        self.weights_id = f"scripted:{name}"
        self._p_gold = p_gold

    async def generate(self, request: Request) -> Generation:
        env = request.host
        if not isinstance(env, TextEnv):
            raise UsageError(f"{self.name} plays only inside the rollout engine")
        rng = Random(request.seed)  # the engine's seeds are hashed already
        gold = rng.random() < self._p_gold
        return _say(env.oracle_action() if gold else env.random_action(rng))


class ScriptedModel(Backend):
    """The shipped fake: replies come from a function of the request, or from a list in order.

    Args:
        replies: `request -> text or Generation`, or texts, which raise `UsageError` when used up.
    """

    fixture = True
    name = "scripted/model"
    weights_id = "scripted:model"

    def __init__(self, replies: Callable[[Request], str | Generation] | Iterable[str]) -> None:
        self.requests: list[Request] = []
        """Every request so far, in order of arrival."""
        self._reply = replies if callable(replies) else _from_list(replies)

    async def generate(self, request: Request) -> Generation:
        self.requests.append(request)
        reply = self._reply(request)
        return _say(reply) if isinstance(reply, str) else reply


def load_scripted(name: str) -> ScriptedBackend:
    """The scripted backend of that name, without "scripted/".

    Raises:
        UnknownNameError: there is none.
        UsageError: P is not a probability.
    """
    kind, colon, p = name.partition(":")
    if name == "oracle":
        return ScriptedBackend(name, 1.0)
    if name == "random":
        return ScriptedBackend(name, 0.0)
    if kind == "noisy-oracle" and colon:
        try:
            value = float(p)
        except ValueError:
            value = -1.0
        if not 0.0 <= value <= 1.0:
            raise UsageError(f"noisy-oracle:P needs a probability from 0 to 1, got {p!r}")
        return ScriptedBackend(name, value)
    raise UnknownNameError("scripted model", name, NAMES)


def _say(text: str) -> Generation:
    words = len(text.split())  # no tokenizer here: a word counts as a token
    return Generation(text=text, raw_text=text, usage=Usage(prompt_tokens=0, sampled_tokens=words))


def _from_list(texts: Iterable[str]) -> Callable[[Request], str]:
    rest = iter(texts)

    def reply(_: Request) -> str:
        text = next(rest, None)
        if text is None:
            raise UsageError("this ScriptedModel has no reply left")
        return text

    return reply
