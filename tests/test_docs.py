"""The documents run: every snippet is executed, every make target and every option exists."""

import doctest
import importlib
import io
import json
import pkgutil
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import whale_bench
import whale_envs
from whale_bench import cli

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
MAKEFILE = (ROOT / "Makefile").read_text()


def blocks(language: str) -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        codes = re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        found += [(page.name, code) for code in codes]
    return found


def commands() -> list[str]:
    lines = [line.partition(" #")[0].strip() for _, code in blocks("bash") for line in code.splitlines()]
    return list(dict.fromkeys(line for line in lines if line))


@pytest.mark.parametrize("command", [c for c in commands() if c.startswith("whale-bench ")])
def test_a_command_in_the_docs_runs(
    command: str,
    tmp_path: Path,
    stub_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In this process: to load the command takes as long as most of them."""
    words = shlex.split(command)[1:]
    words = [stub_url if word == "http://127.0.0.1:8000/v1" else word for word in words]
    if words[0] == "eval" and "-n" not in words:
        words += ["-n", "2"]
    words = [re.sub(r"\bexamples/", f"{ROOT}/examples/", word) for word in words]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["whale-bench", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code in (0, None), capsys.readouterr().err


def test_every_other_command_in_the_docs_is_a_make_target() -> None:
    for command in commands():
        if not command.startswith("whale-bench "):
            words = command.split()
            assert words[0] == "make", command
            assert f"\n{words[1]}:" in MAKEFILE, command


@pytest.mark.parametrize(("page", "code"), blocks("python"), ids=lambda v: str(v)[:20])
def test_python_in_the_docs_runs(page: str, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())  # one snippet is a program that reads until the end
    exec(compile(code, page, "exec"), {"__name__": "docs"})


def modules() -> list[str]:
    names = []
    for package in (whale_envs, whale_bench):
        walk = pkgutil.walk_packages(package.__path__, package.__name__ + ".")
        names += [m.name for m in walk if not m.name.endswith((".worker", ".build_data"))]
    return names


@pytest.mark.parametrize("name", modules())
def test_examples_in_docstrings_hold(name: str) -> None:
    module = importlib.import_module(name)
    names = {"chess": importlib.import_module("chess")}
    result = doctest.testmod(module, extraglobs=names, optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


def test_every_constant_of_a_harness_is_documented() -> None:
    from whale_bench.harness import BaseHarness

    page = (ROOT / "docs" / "harness.md").read_text()
    for name in vars(BaseHarness):
        if not name.startswith("_"):
            assert f"`{name}" in page, name


def test_every_environment_tier_and_size_is_documented() -> None:
    for domain in whale_envs.DOMAINS.values():
        page = (ROOT / "docs" / f"{domain.name}.md").read_text()
        assert domain.env_id in page
        for tier, sizes in domain.module.SIZES.items():
            cells = " | ".join(f"{sizes[split]:,}" for split in whale_envs.SPLITS)
            assert f"| `{tier}` | {cells} |" in page


def test_links_between_documents_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_list_command_agrees_with_the_suite() -> None:
    run = [sys.executable, "-m", "whale_bench.cli", "list", "--json"]
    suite = json.loads(subprocess.run(run, capture_output=True, text=True, check=True).stdout)
    assert suite["environments"].keys() == whale_envs.DOMAINS.keys()
    assert suite["splits"] == list(whale_envs.SPLITS)


@pytest.mark.parametrize("name", ["agent_python.py", "agent_lines.py"])
def test_the_readme_shows_the_agents_that_it_runs(name: str) -> None:
    shown = (ROOT / "README.md").read_text()
    assert f"```python\n{(ROOT / 'examples' / name).read_text()}```" in shown
