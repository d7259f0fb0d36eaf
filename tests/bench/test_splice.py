"""Splicing: the next prompt is built around the ids that were sampled, with a character-level fake."""

from typing import Any

from bench_fakes import EXAMPLES, in_process, play
from hypothesis import given, settings
from hypothesis import strategies as st

from whale_bench import Generation, Request, training_sequences
from whale_bench.models import Message, TokenBackend, Usage
from whale_bench.models.splice import splice
from whale_bench.records import Segment
from whale_envs.text import split_thinking

BOS, END, AB = 0x10FFFF, 0x10FFFE, 0x10FFFD
WORDS = {BOS: "<s>", END: "<end>", AB: "ab"}
SPECIAL = {"<s>": BOS, "<end>": END}


class Letters(TokenBackend):
    """A token is a code point, "<s>" or "<end>", or "ab", which the model never samples.

    Args:
        replies: ids sampled in turn, without the end.
        drop_thinking: the template leaves out earlier turns' thinking, as Qwen3's does.
        ends: whether the model samples the end token.
    """

    name, weights_id = "local/letters", "letters"

    def __init__(self, *replies: str, drop_thinking: bool = False, ends: bool = True) -> None:
        self.replies, self.drop_thinking, self.ends = iter(replies), drop_thinking, ends
        self.prompts: list[tuple[int, ...]] = []

    def render(self, messages: tuple[Message, ...], tools: Any = (), kwargs: Any = ()) -> str:
        text = "<s>"
        for message in messages:
            content = message.content
            if message.role == "assistant" and self.drop_thinking:
                content = split_thinking(content)[1]
            text += f"[{message.role}]{content}<end>"
        return text + "[assistant]"

    def encode(self, text: str) -> tuple[int, ...]:
        ids: list[int] = []
        while text:
            word = next((w for w in (*SPECIAL, "ab") if text.startswith(w)), text[0])
            ids.append(AB if word == "ab" else SPECIAL.get(word, ord(word[0])))
            text = text[len(word) :]
        return tuple(ids)

    def decode(self, ids: tuple[int, ...]) -> str:
        return "".join(WORDS.get(i) or chr(i) for i in ids)

    async def generate(self, request: Request) -> Generation:
        assert request.prompt_ids is not None
        self.prompts.append(request.prompt_ids)
        text = next(self.replies)
        ids = (*map(ord, text), *([END] if self.ends else []))
        reasoning, final = split_thinking(text)
        return Generation(
            final, "stop" if self.ends else "length", reasoning, raw_text=self.decode(ids),
            prompt_ids=request.prompt_ids, sampled_ids=ids, logprobs=(-1.0,) * len(ids),
            usage=Usage(len(request.prompt_ids), len(ids)),
        )  # fmt: skip


CHAT = "MAX_TURNS = 3\ndef read(self, reply, view):\n    return Nudge('again')"
KEEP = (
    CHAT
    + """
def messages(self, view):
    chat = [{"role": "user", "content": view.opening}]
    for turn in view.turns:
        said = f"<think>{turn.reply.reasoning}</think>{turn.reply.text}"
        chat.append({"role": "assistant", "content": said})
        chat.append({"role": "user", "content": turn.observation})
    return chat"""
)


async def test_o22_sampled_ids_are_kept_and_not_encoded_again() -> None:
    backend = Letters("ab", "xab", "b")
    row = await play(None, in_process(CHAT), backend=backend)
    a, b = ord("a"), ord("b")
    assert row.segments[0].sampled_ids == (a, b, END)
    assert row.segments[0].logprobs is not None
    assert len(row.segments[0].logprobs) == 3
    first, second, _ = backend.prompts
    assert second[: len(first) + 3] == (*first, a, b, END)
    assert second[len(first) + 3 :] == backend.encode("[user]again<end>[assistant]")
    [sequence] = training_sequences(row)
    assert sum(sequence.mask) == 3 + 4 + 2


async def test_o22_every_prompt_begins_with_exactly_one_bos() -> None:
    for drop in (False, True):
        backend = Letters("<think>x</think>ab", "ab", "b", drop_thinking=drop)
        await play(None, in_process(KEEP), backend=backend)
        assert [prompt.count(BOS) for prompt in backend.prompts] == [1, 1, 1]
        assert all(prompt[0] == BOS for prompt in backend.prompts)


async def test_o23_a_template_that_drops_earlier_thinking_begins_a_new_sequence() -> None:
    backend = Letters("<think>hm</think>yes", "<think>so</think>no", "<think>.</think>on", drop_thinking=True)
    row = await play(None, in_process(KEEP), backend=backend)
    rows = training_sequences(row)
    assert len(rows) == 3
    for segment, sequence in zip(row.segments, rows, strict=True):
        assert segment.prompt_ids is not None
        assert segment.sampled_ids is not None
        assert sequence.ids == segment.prompt_ids + segment.sampled_ids
        assert sum(sequence.mask) == len(segment.sampled_ids)
    assert "hm" not in backend.decode(backend.prompts[1])


async def test_o23_a_template_that_keeps_thinking_goes_on_in_one_sequence() -> None:
    backend = Letters("<think>hm</think>yes", "<think>so</think>no", "<think>.</think>on")
    row = await play(None, in_process(KEEP), backend=backend)
    assert len(training_sequences(row)) == 1


async def test_a_reply_that_was_cut_off_gets_its_end_from_the_template_unsampled() -> None:
    backend = Letters("abc", "de", "f", ends=False)
    row = await play(None, in_process(CHAT), backend=backend)
    first, second, _ = backend.prompts
    assert second == (*first, *map(ord, "abc"), END, *backend.encode("[user]again<end>[assistant]"))
    [sequence] = training_sequences(row)
    assert END not in [i for i, on in zip(sequence.ids, sequence.mask, strict=True) if on]


async def test_a_harness_that_rewrites_the_context_begins_a_new_sequence() -> None:
    backend = Letters("ab", "cd", "ef")
    body = (
        CHAT + "\ndef messages(self, view):\n    return [{'role': 'user', 'content': str(len(view.turns))}]"
    )
    row = await play(None, in_process(body), backend=backend)
    assert len(training_sequences(row)) == 3
    assert backend.prompts[1] == backend.encode("<s>[user]1<end>[assistant]")


async def test_h0_of_chess_repeats_the_position_and_so_trains_each_turn_apart() -> None:
    example = next(i for i, e in enumerate(EXAMPLES) if len(e.gold) >= 3)
    gold = EXAMPLES[example].gold
    backend = Letters(*gold[::2])
    row = await play(None, backend=backend, example=example)
    assert row.verdict.reward == 1.0
    assert len(training_sequences(row)) == len(gold[::2])


@given(st.lists(st.text(st.sampled_from("abx<>s/ "), max_size=5), min_size=1, max_size=4), st.booleans())
@settings(max_examples=100, deadline=None, derandomize=True, database=None)
def test_a_spliced_prompt_decodes_to_what_the_template_rendered(texts: list[str], ends: bool) -> None:
    backend = Letters(ends=ends)
    chat: tuple[Message, ...] = (Message("user", "go"),)
    last: Segment | None = None
    for text in texts:
        request = splice(backend, Request(chat), last)
        assert request.prompt_ids is not None
        assert backend.decode(request.prompt_ids) == backend.render(chat)
        sampled = (*map(ord, text), *([END] if ends else []))
        if last is not None:
            assert last.prompt_ids is not None
            assert last.sampled_ids is not None
            before = last.prompt_ids + last.sampled_ids
            assert request.prompt_ids[: len(before)] == before
        last = Segment(chat, text, prompt_ids=request.prompt_ids, sampled_ids=sampled)
        chat += (Message("assistant", text), Message("user", "on"))
