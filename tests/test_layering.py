"""The walls: what may import what, read off the syntax trees, and what an import may load."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {
    "whale_envs": ROOT / "whale_envs",
    "whale_bench": ROOT / "whale_bench",
    "whale_baselines": ROOT / "baselines" / "whale_baselines",
    "whale_leaderboard": ROOT / "leaderboard" / "whale_leaderboard",
}
MAY_IMPORT = {
    "whale_envs": {"whale_envs"},
    "whale_bench": {"whale_envs", "whale_bench"},
    "whale_baselines": {"whale_envs", "whale_bench", "whale_baselines"},
    "whale_leaderboard": {"whale_envs", "whale_bench", "whale_leaderboard"},
}
HEAVY = {
    "sympy",
    "math_verify",
    "torch",
    "transformers",
    "datasets",
    "inspect_ai",
    "pyarrow",
    "jnius",
    "pyserini",
    "vllm",
    "anthropic",
    "trl",
    "peft",
    "accelerate",
    "ray",
}


def imported(tree: ast.AST) -> set[str]:
    """Full names of every module that a file imports, at any depth."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names.add(node.module or "")
    return names


def modules() -> list[tuple[str, Path]]:
    return [(package, path) for package, folder in FOLDERS.items() for path in sorted(folder.rglob("*.py"))]


@pytest.mark.parametrize(("package", "path"), modules(), ids=lambda value: str(value).replace(str(ROOT), ""))
def test_a_module_imports_only_upstream(package: str, path: Path) -> None:
    ours = {name.split(".")[0] for name in imported(ast.parse(path.read_text()))} & FOLDERS.keys()
    assert ours <= MAY_IMPORT[package]


def test_domains_never_import_one_another() -> None:
    from whale_envs import DOMAINS

    for name in DOMAINS:
        for path in (FOLDERS["whale_envs"] / name).rglob("*.py"):
            others = {f"whale_envs.{other}" for other in DOMAINS if other != name}
            reached = imported(ast.parse(path.read_text()))
            assert not {r for r in reached if any(r == o or r.startswith(o + ".") for o in others)}, path


def test_heavy_libraries_are_imported_inside_functions_only() -> None:
    for _, path in modules():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                assert not {name.split(".")[0] for name in imported(node)} & HEAVY, path


def loaded_after(statement: str) -> set[str]:
    code = f"{statement}; import sys; print(' '.join(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_whale_envs_loads_no_torch_no_client_and_no_jvm() -> None:
    assert not loaded_after("import whale_envs") & (HEAVY | {"aiohttp", "typer", "rich"})


def test_importing_whale_bench_loads_next_to_nothing() -> None:
    assert not loaded_after("import whale_bench") & (HEAVY | {"aiohttp", "gymnasium", "numpy"})


def test_the_command_line_answers_help_without_the_suite() -> None:
    assert not loaded_after("import whale_bench.cli") & (HEAVY | {"aiohttp", "gymnasium", "numpy", "chess"})


def test_a_harness_worker_holds_nothing_of_the_host() -> None:
    loaded = loaded_after("import whale_bench.harness.worker")
    assert not loaded & (HEAVY | {"whale_envs", "gymnasium", "numpy", "chess", "aiohttp", "sqlite3"})


def test_every_module_opens_with_a_docstring_that_says_what_is_not_covered() -> None:
    exempt = {"__init__.py", "h0", "errors.py"}
    for _, path in modules():
        tree = ast.parse(path.read_text())
        doc = ast.get_docstring(tree)
        assert doc, path
        if path.name not in exempt and path.parent.name not in exempt:
            assert "Not covered" in doc, f"{path} does not say what it leaves out"
