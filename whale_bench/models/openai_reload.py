"""A vLLM server elsewhere whose weights a trainer replaces, checked by a fingerprint.

    backend = ReloadedServer("policy", "models/base", logprobs=trainer.logprobs, base_url="http://…:8000/v1")
    async with backend:
        await backend.reload("runs/weight/checkpoints/step-000001")     # a path that the server can read

The server has to be started with VLLM_SERVER_DEV_MODE=1, which opens routes that let anybody who reaches it
do as they like: bind it to loopback. `reload` has it load the folder in place (`reload_weights`), drop what
it remembers of prompts, and then asks for the log-probabilities of fixed prompts. They are compared with
the trainer's own, see `check_fingerprint`; a server that fails this stops the run.

What cannot be hashed is never shown as verified: `weights_id` is `remote:NAME:` and what the server claims
to serve.

`remembered` is what the next comparison needs of the last one; a run keeps it for when it is resumed.

Not covered: servers of other makes; weights sent over the network; a server that has no route for weights,
see `openai_restart.py`.
"""

import asyncio
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from whale_bench.models.folder import hash_folder, model_folder
from whale_bench.models.openai_tokens import OpenAITokens
from whale_bench.models.server import Server
from whale_envs.errors import InfrastructureError, UsageError

Logprobs = Callable[[Sequence[tuple[int, ...]]], list[float]]
"""Of every token but the first of each prompt, at temperature 1, all prompts after one another."""

TEXTS = (
    "The quick brown fox jumps over the lazy dog. 12 + 7 = 19, and 19 - 7 = 12.",
    "Question: which river flows through the capital of France? Answer: the Seine.",
    "White to move. Legal moves: e2e4, g1f3, b1c3. The best move is e2e4.",
    "def add(a, b):\n    return a + b\n\nprint(add(2, 3))  # prints 5",
)
"""What fingerprints are taken of: kinds of text that a model knows something about."""

TOLERANCE = 0.25
"""Nats; largest root mean square difference per token. bfloat16 against float32 measured 0.06."""

FOLLOWS = 0.25
"""How far from 1 the share may be by which a server followed a change of weights."""

TELLING = 16
"""How many times larger than what rounding moves it by a change has to be for that share to be looked at."""


class Fingerprints(NamedTuple):
    """Log-probabilities of the fixed prompts' tokens, as a server and as the trainer has them."""

    theirs: list[float]
    ours: list[float]
    claimed: str = ""
    """Hash of the folder that the server was given."""


class ReloadedServer(OpenAITokens):
    """See the module's docstring.

    Args:
        model: name of the model on the server.
        folder: the folder that training begins with; its tokenizer renders chats.
        logprobs: the trainer's own, of its weights as they are when it is called.
        base_url: see `OpenAIBackend`.
    """

    def __init__(
        self, model: str, folder: str, *, logprobs: Logprobs, base_url: str | Sequence[str] | None = None
    ) -> None:
        super().__init__(model, folder, base_url=base_url)
        self._logprobs = logprobs
        self._prompts = [self.encode(text) for text in TEXTS]
        self._before: dict[str, Fingerprints] = {}
        """When a server was last given weights, by its address."""

    def remembered(self) -> bytes:
        """See `Remembering`."""
        return msgspec.json.encode(self._before)

    def remember(self, told: bytes) -> None:
        """See `Remembering`."""
        self._before = msgspec.json.decode(told, type=dict[str, Fingerprints])

    async def reload(self, folder: str | Path, *, logprobs: Logprobs | None = None) -> str:
        """Has every server serve `folder`; what they claim to serve from now on.

        Args:
            folder: a path that the server can read.
            logprobs: of the weights in `folder`, where they are not the trainer's present ones.

        Raises:
            UsageError: no model folder, or a server that takes no weights.
            InfrastructureError: a server fails, or its fingerprint is not that of the trainer's weights.
        """
        path = model_folder("openai", str(folder)).resolve()
        claimed = await asyncio.to_thread(hash_folder, path)
        ours = await asyncio.to_thread(logprobs or self._logprobs, self._prompts)
        earlier = dict(self._before)
        for server in self._servers.all:
            await self._deliver(server, path)
            found = Fingerprints(await self._fingerprint(server), ours, claimed)
            # A server that is somewhere else after a resume is compared with any one of then.
            before = earlier.get(server.address) or next(iter(earlier.values()), None)
            check_fingerprint(found, before, f"{server.address}, given {str(folder)!r},")
            self._before[server.address] = found
        self.weights_id = f"remote:{self._model}:{claimed}"
        return self.weights_id

    async def _deliver(self, server: Server, folder: Path) -> None:
        """Has a server take the weights in `folder`."""
        root = server.url.removesuffix("/v1")
        await self._post(server, f"{root}/collective_rpc", _reload_of(folder))
        await self._post(server, f"{root}/reset_prefix_cache", {})

    async def _fingerprint(self, server: Server) -> list[float]:
        found: list[float] = []
        for prompt in self._prompts:
            body = {
                "model": self._model,
                "prompt": prompt,
                "max_tokens": 1,
                "temperature": 0,
                "prompt_logprobs": 0,
            }
            data = await self._post(server, f"{server.url}/completions", body)
            found += _prompt_logprobs(data, prompt, server.address)
        return found

    async def _post(self, server: Server, url: str, body: dict[str, Any]) -> bytes:
        """The body of an answer that says yes."""
        import aiohttp

        try:
            async with server.session.post(url, json=body) as response:
                data: bytes = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise InfrastructureError(f"{server.address}: {url} failed: {error}") from error
        if response.status in (404, 405):
            raise UsageError(
                f"{server.address} has no {url.rpartition('/')[2]}, so it takes no weights: start vLLM with "
                "VLLM_SERVER_DEV_MODE=1, bound to loopback"
            )
        if response.status != 200:
            raise InfrastructureError(f"{server.address}: {url} answered {response.status}: {data[:300]!r}")
        return data


def check_fingerprint(now: Fingerprints, before: Fingerprints | None, who: str) -> None:
    """Whether a server's log-probabilities are those of the trainer's weights, as far as rounding lets see.

    They may differ by `TOLERANCE`. Where the trainer's own moved since `before` by much more than rounding
    does, the server's have to have moved along: wholly for new weights, not at all for old ones, in part
    for a mixture of both, which a reload can leave behind. Where the weights are those of `before`, what
    moved is rounding alone, and only `TOLERANCE` counts.

    Raises:
        InfrastructureError: they are not; `who` begins the message.
    """
    import numpy as np

    theirs, ours, claimed = now
    if len(theirs) != len(ours) or not all(map(math.isfinite, theirs)):
        raise InfrastructureError(f"{who} gave no usable log-probabilities of {len(ours)} tokens")
    each = math.dist(theirs, ours) / math.sqrt(len(ours))
    if each > TOLERANCE:
        raise InfrastructureError(
            f"{who} serves other weights: its log-probabilities of fixed prompts differ from the trainer's "
            f"by {each:.3f} a token, allowed is {TOLERANCE}"
        )
    if before is None or not len(before.theirs) == len(before.ours) == len(ours):
        return
    if claimed and claimed == before.claimed:
        return
    moved, change = np.subtract(theirs, before.theirs), np.subtract(ours, before.ours)
    size = float(np.linalg.norm(change))
    share = float(moved @ change) / size**2 if size else 1.0
    noise = float(np.linalg.norm(moved - share * change)) / math.sqrt(len(ours))
    if size > TELLING * noise and abs(share - 1) > FOLLOWS:
        raise InfrastructureError(
            f"{who} did not take all of the new weights: its log-probabilities of fixed prompts moved by "
            f"{share:.0%} of the trainer's change"
        )


def _reload_of(folder: Path) -> dict[str, Any]:
    return {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}


def _prompt_logprobs(data: bytes, prompt: Sequence[int], address: str) -> list[float]:
    """Log-probabilities of all tokens of `prompt` but the first."""
    try:
        places = json.loads(data)["choices"][0]["prompt_logprobs"]
        return [
            float(place[str(token)]["logprob"]) for token, place in zip(prompt[1:], places[1:], strict=True)
        ]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise InfrastructureError(
            f"{address} answered without log-probabilities of its prompt: {data[:200]!r}"
        ) from error
