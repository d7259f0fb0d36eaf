"""A server with vLLM's routes for new weights, around the transformers backend, in this process.

`obeys` says what a reload does: "wholly", "not" at all, or "partly" (the output layer stays as it was).
"""

import copy

import torch
from aiohttp import web

from whale_bench.models.base import Request, Sampling
from whale_bench.models.local import LocalBackend


class WeightServer:
    def __init__(self, folder, *, obeys="wholly", dev_mode=True):
        self.backend = LocalBackend.load(str(folder), precision="bfloat16")
        self.obeys = obeys
        self.resets = 0
        self.app = web.Application()
        self.app.router.add_post("/v1/completions", self.complete)
        if dev_mode:
            self.app.router.add_post("/collective_rpc", self.rpc)
            self.app.router.add_post("/reset_prefix_cache", self.reset)

    async def complete(self, request):
        body = await request.json()
        if "prompt_logprobs" in body:
            return web.json_response({"choices": [{"prompt_logprobs": self.logprobs(body["prompt"])}]})
        sampling = Sampling(body["temperature"], body["top_p"], body.get("top_k", 0))
        asked = Request(
            (), sampling=sampling, max_tokens=min(body["max_tokens"], 8), seed=body["seed"],
            prompt_ids=tuple(body["prompt"]),
        )  # fmt: skip
        found = await self.backend.generate(asked)
        choice = {"token_ids": found.sampled_ids, "finish_reason": found.finish_reason, "text": found.text}
        return web.json_response({"choices": [choice | {"logprobs": None}]})

    def logprobs(self, prompt):
        model = self.backend._loop.model
        mask = torch.full((len(prompt), len(prompt)), float("-inf")).triu(1).to(model.dtype)[None, None]
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([prompt]), attention_mask=mask, use_cache=False).logits
        all_of_them = logits[0].float().log_softmax(-1)
        told = (
            {str(token): {"logprob": all_of_them[at, token].item(), "rank": 1}}
            for at, token in enumerate(prompt[1:])
        )
        return [None, *told]

    async def rpc(self, request):
        body = await request.json()
        assert body["method"] == "reload_weights"
        if self.obeys != "not":
            head = copy.deepcopy(self.backend._loop.model.lm_head)
            await self.backend.reload(body["kwargs"]["weights_path"])
            if self.obeys == "partly":
                self.backend._loop.model.lm_head = head
        return web.json_response({"results": [None]})

    async def reset(self, request):
        self.resets += 1
        return web.Response()
