"""Switches of a chat template: rendered here, sent to a server, kept in the run, refused where unknown."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from chat_server import serve
from hypothesis import given
from hypothesis import strategies as st
from test_openai import AT_ONCE
from tiny_model import TEMPLATE, write_folder
from typer.testing import CliRunner

from whale_bench import EvalPlan, Request, evaluate, training_sequences
from whale_bench.cli import app
from whale_bench.export.inspect_header import sampling_of
from whale_bench.models import Message, Sampling
from whale_bench.models.chat_template import ChatTemplate
from whale_bench.models.local import LocalBackend
from whale_bench.models.openai import OpenAIBackend
from whale_bench.models.openai_tokens import OpenAITokens
from whale_bench.plan import plan_of
from whale_bench.store import RunStore
from whale_envs import UsageError

OPEN, SHUT = "<think>\n", "<think>\n\n</think>\n\n"
SWITCHED = TEMPLATE.replace(
    "{{ '<|im_start|>assistant\n' }}",
    "{{ '<|im_start|>assistant\n' }}{% if enable_thinking is defined and enable_thinking %}"
    f"{{{{ '{OPEN}' }}}}{{% else %}}{{{{ '{SHUT}' }}}}{{% endif %}}",
)
ON, OFF = (("enable_thinking", True),), (("enable_thinking", False),)
HI = (Message("user", "hello"),)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write_folder(tmp_path_factory.mktemp("switches") / "tiny")
    (made / "chat_template.jinja").write_text(SWITCHED)
    return made


@pytest.fixture(scope="module")
def chat(folder: Path) -> ChatTemplate:
    return ChatTemplate.load(folder, name="local/tiny")


def test_a_switch_changes_what_is_rendered(chat: ChatTemplate) -> None:
    assert chat.switches == {"enable_thinking"}
    assert chat.render(HI, (), ON).endswith(f"assistant\n{OPEN}")
    assert chat.render(HI, (), OFF) == chat.render(HI)
    assert chat.render(HI).endswith(f"assistant\n{SHUT}")


@pytest.mark.parametrize("name", ["thinking", "messages", "add_generation_prompt", "eos_token", "tokenize"])
def test_a_switch_that_the_template_does_not_have_is_refused(chat: ChatTemplate, name: str) -> None:
    with pytest.raises(UsageError, match=f"local/tiny has no switch '{name}'; it has enable_thinking"):
        chat.render(HI, (), ((name, True),))


def test_a_switch_with_a_default_of_its_own_is_one(folder: Path) -> None:
    tokenizer = ChatTemplate.load(folder, name="x").tokenizer
    tokenizer.chat_template = "{% set effort = effort | default('low') %}{{ effort }}"
    assert ChatTemplate(tokenizer, "x").switches == {"effort"}
    assert ChatTemplate(tokenizer, "x").render(HI, (), (("effort", "high"),)) == "high"


def test_what_a_prompt_opened_is_thinking_until_it_is_closed(chat: ChatTemplate) -> None:
    """Cut off in the middle of thinking there is no final text, and a move in it is none."""
    on, off = (chat.encode(chat.render(HI, (), kwargs)) for kwargs in (ON, OFF))
    cut, closed = chat.encode("the answer is 12"), chat.encode("the</think>answer is 12")
    assert chat.read(on, cut) == ("the answer is 12", "")
    assert chat.read(on, closed) == chat.read(off, closed) == ("the", "answer is 12")
    assert chat.read(off, cut) == ("", "the answer is 12")


@given(text=st.text(max_size=40))
def test_only_the_end_of_a_prompt_opens_thinking(chat: ChatTemplate, text: str) -> None:
    asked = chat.encode(chat.render((Message("user", f"<think>{text}"),), (), OFF))
    assert chat.read(asked, chat.encode("12")) == ("", "12")


@pytest.mark.usefixtures("one_thread")
async def test_a_model_in_this_process_takes_them(folder: Path) -> None:
    request = Request(HI, sampling=Sampling(chat_template_kwargs=ON), max_tokens=3)
    async with LocalBackend.load(str(folder), precision="float32") as backend:
        found = await backend.generate(request)
        assert backend.decode(found.prompt_ids or ()).endswith(OPEN)
        assert found.text == ""  # three tokens close nothing
        both = (Request(HI, sampling=Sampling(chat_template_kwargs=k), max_tokens=3) for k in (ON, OFF))
        assert len({g.prompt_ids for g in await asyncio.gather(*map(backend.generate, both))}) == 2


async def test_a_server_is_sent_them_by_their_name_and_ids_are_rendered_with_them(folder: Path) -> None:
    request = Request(HI, sampling=Sampling(chat_template_kwargs=ON), max_tokens=7)
    reply = {"message": {"content": "hi"}, "finish_reason": "stop", "token_ids": [9, 2], "text": "",
             "logprobs": None}  # fmt: skip
    async with serve(lambda p, n: {"choices": [reply]}) as server:
        async with OpenAIBackend("m", base_url=server.url, patience=AT_ONCE) as plain:
            await plain.generate(request)
            await plain.generate(Request(HI))
        async with OpenAITokens("m", str(folder), base_url=server.url, patience=AT_ONCE) as tokens:
            found = await tokens.generate(request)
    first, second, third = server.requests
    assert first["chat_template_kwargs"] == {"enable_thinking": True}
    assert "chat_template_kwargs" not in second
    assert "chat_template_kwargs" not in third
    assert tokens.decode(tuple(third["prompt"])).endswith(OPEN)
    assert found.text == ""


def plan(folder: Path, **changes: Any) -> EvalPlan:
    settings = {"model": f"local/{folder}", "chat_template_kwargs": {"enable_thinking": True}} | changes
    return EvalPlan(domain="math_python", n=1, k=2, max_tokens=6, **settings)


@pytest.mark.usefixtures("one_thread")
async def test_a_run_keeps_them_and_trains_on_what_was_rendered_with_them(
    folder: Path, tmp_path: Path
) -> None:
    asked = plan(folder)
    await evaluate(asked, tmp_path / "run")
    store = RunStore.open(tmp_path / "run")
    assert store.settings["chat_template_kwargs"] == {"enable_thinking": True}
    assert plan_of(store.settings, store.folder).sampling() == asked.sampling()
    assert sampling_of(store.settings)["extra_body"] == {"chat_template_kwargs": {"enable_thinking": True}}
    chat = ChatTemplate.load(folder, name="x")
    for record in store.rollouts():
        for sequence in training_sequences(record):
            prompt = sequence.ids[: sequence.mask.index(True)]
            assert chat.decode(prompt).endswith(OPEN)


async def test_an_unknown_switch_ends_a_run_before_its_folder(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no switch 'thinking'"):
        await evaluate(plan(folder, chat_template_kwargs={"thinking": True}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "anthropic/x"}, "goes with local/NAME, vllm/NAME, openai/NAME, got 'anthropic/x'"),
        ({"model": "scripted/random"}, "goes with local/NAME"),
        ({"chat_template_kwargs": {"a": [1]}}, "chat_template_kwargs cannot be"),
    ],
)
def test_what_cannot_be_is_refused(folder: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        plan(folder, **changes)


@pytest.mark.parametrize("text", ["{", "[1]", "true"])
def test_the_option_takes_a_json_object(text: str) -> None:
    words = ["eval", "chess_puzzles", "-m", "openai/x", "--chat-template-kwargs", text]
    failed = CliRunner().invoke(app, words)
    assert isinstance(failed.exception, UsageError)
    assert "--chat-template-kwargs takes a JSON object" in str(failed.exception)


def test_a_plan_without_switches_asks_for_what_it_always_did() -> None:
    asked = EvalPlan(domain="chess_puzzles", model="scripted/random").sampling()
    assert asked == Sampling()
    assert hash(asked) == hash(Sampling())  # a batch is sorted by it
