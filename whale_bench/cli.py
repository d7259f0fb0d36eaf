"""The command `whale-bench`: eval, list, pull, doctor, check-harness, index build, serve-retriever.

    whale-bench eval chess_puzzles --model scripted/random -n 8

Exit codes: 0 done; 1 findings of check-harness; 2 misuse, with one line that says what; 3 incomplete,
some rollouts are missing; 130 interrupted. Heavy modules are imported inside the commands, so that
--help answers at once.

Not covered: looking at rollouts, comparing runs.
"""

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

if TYPE_CHECKING:
    from whale_bench.scoring import Summary
    from whale_envs.core import Profile

app = typer.Typer(
    name="whale-bench",
    help="Evaluate agents (a model and a harness) on the whale suite.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

FINDINGS, MISUSE, INCOMPLETE, INTERRUPTED = 1, 2, 3, 130
"""Exit codes."""


@app.command("eval")
def eval_command(
    context: typer.Context,
    domain: Annotated[str | None, typer.Argument(help="Environment, as `whale-bench list` names it.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", help="KIND/NAME, or your own agent; several times to compare them."),
    ] = None,
    n: Annotated[int | None, typer.Option("-n", help="Examples: the first N of the split.")] = None,
    k: Annotated[int, typer.Option("-k", help="Rollouts per example.")] = 8,
    concurrency: Annotated[int | None, typer.Option("-c", help="Rollouts in flight.")] = None,
    tier: Annotated[str, typer.Option(help="mini, small or full.")] = "mini",
    split: Annotated[str, typer.Option(help="weight, harness, dev or test.")] = "test",
    profile: Annotated[str, typer.Option(help="Verdicts that score: standard or paper.")] = "standard",
    harness: Annotated[str | None, typer.Option(help="A harness file; without it, h0.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Finish this run folder.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder to make; with several models, their parent.")
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(help="Server of openai/NAME, or of your own agent's model calls.")
    ] = None,
    agent_seconds: Annotated[
        float | None, typer.Option(help="Longest that your own agent may take for an action; 300 without it.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the run.")] = 0,
    max_tokens: Annotated[int | None, typer.Option(help="Most sampled tokens per turn.")] = None,
    token_budget: Annotated[int | None, typer.Option(help="Most sampled tokens per rollout.")] = None,
    python_url: Annotated[str | None, typer.Option(help="SandboxFusion server for the Python tool.")] = None,
    unsafe_python: Annotated[
        bool, typer.Option("--unsafe-python", help="Run model-written code even where it cannot be confined.")
    ] = False,
    retriever: Annotated[
        str | None, typer.Option(help="What searches: bm25 (without it), pyserini, dense or http.")
    ] = None,
    index: Annotated[
        str | None, typer.Option(help="Folder or name of an index; without it, the tier's corpus.")
    ] = None,
    retriever_url: Annotated[str | None, typer.Option(help="Server of --retriever http.")] = None,
    closed_book: Annotated[
        bool, typer.Option("--closed-book", help="Run no search: what the model knows by itself.")
    ] = False,
    judge: Annotated[
        str | None, typer.Option(help="Model that judges short answers, KIND/NAME; without it, exact match.")
    ] = None,
    judge_url: Annotated[str | None, typer.Option(help="Server of --judge openai/NAME.")] = None,
    temperature: Annotated[float, typer.Option(help="Sampling temperature.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Nucleus of the sampling distribution.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Most likely tokens kept; 0 for all.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summaries as JSON instead.")] = False,
) -> None:
    """Evaluate a model with a harness: mean@k, an interval, every trajectory on disk."""
    from whale_bench import commands
    from whale_envs.errors import UsageError

    if resume is not None:
        given = [name for name in context.params if _is_given(context, name)]
        if others := sorted(set(given) - {"resume", "as_json", "base_url"}):
            raise UsageError(f"--resume takes everything from the run folder; leave out {', '.join(others)}")
        runs = [commands.Run(None, resume, base_url)]
    elif domain is None or not model:
        raise UsageError("eval needs an environment and --model; see `whale-bench list`")
    else:
        from whale_bench.agents.names import is_own_agent
        from whale_bench.evaluation import EvalPlan

        several = len(model) > 1  # one server and, say, a fixture to compare with
        served = ("openai/", "agent:", "process:")
        plans = [
            EvalPlan(
                domain=domain, model=name, tier=tier, split=split, profile=cast("Profile", profile), n=n, k=k,
                seed=seed, concurrency=concurrency, harness=harness, max_tokens=max_tokens,
                base_url=None if several and not name.startswith(served) else base_url,
                agent_seconds=None if several and not is_own_agent(name) else agent_seconds,
                token_budget=token_budget, python_url=python_url, unsafe_python=unsafe_python,
                retriever=retriever, index=index, retriever_url=retriever_url, judge=judge,
                judge_url=judge_url, closed_book=closed_book or None, temperature=temperature, top_p=top_p,
                top_k=top_k,
            )
            for name in model
        ]  # fmt: skip
        runs = commands.place(plans, out)
    summaries: list[Summary] = []
    try:
        commands.evaluate_all(runs, summaries, quiet=as_json)
    finally:
        if summaries:
            commands.show(summaries, runs[: len(summaries)], as_json=as_json)
    if any(not summary.complete for summary in summaries):
        raise typer.Exit(INCOMPLETE)


@app.command("list")
def list_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Show environments, tiers, splits, models and harnesses."""
    from whale_bench import commands

    commands.show_suite(as_json=as_json)


@app.command()
def pull(name: Annotated[str, typer.Argument(help="smollm2")]) -> None:
    """Fetch a model's weights into the user's cache."""
    from whale_bench.models.pull import pull as fetch

    typer.echo(fetch(name, say=lambda line: typer.echo(line, err=True)))


@app.command()
def doctor() -> None:
    """Show what is installed, and what confines model-written code here."""
    from whale_bench import commands

    commands.show_doctor()


index_app = typer.Typer(no_args_is_help=True, help="Build indexes for the search tool.")
app.add_typer(index_app, name="index")


@index_app.command("build")
def index_build_command(
    corpus: Annotated[
        str, typer.Argument(help="JSONL file (id, contents), or wiki-mini, factbook, wiki-2018.")
    ],
    folder: Annotated[Path, typer.Argument(help="Where the index goes; a new folder.")],
    retriever: Annotated[str, typer.Option(help="Kind of index: bm25, pyserini or dense.")] = "bm25",
    encoder: Annotated[
        str | None, typer.Option(help="Of dense: a Hugging Face name or folder, e.g. intfloat/e5-base-v2.")
    ] = None,
) -> None:
    """Build an index that `eval --index` and `serve-retriever --index` take."""
    from whale_envs.search_qa.retrievers import build

    build(retriever, corpus, folder, encoder=encoder)
    typer.echo(f"{folder}: {retriever} index of {corpus}")


@app.command("serve-retriever")
def serve_retriever_command(
    retriever: Annotated[str, typer.Option(help="What searches: bm25, pyserini, dense or http.")] = "bm25",
    tier: Annotated[str, typer.Option(help="Whose corpus, without --index.")] = "mini",
    index: Annotated[str | None, typer.Option(help="Folder or name of an index.")] = None,
    retriever_url: Annotated[str | None, typer.Option(help="Server of --retriever http.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 8000,
) -> None:
    """Serve a retriever by Search-R1's protocol, for `eval --retriever http`, until Ctrl-C or SIGTERM."""
    import asyncio

    from whale_envs.retrieval.server import serve
    from whale_envs.search_qa.retrievers import open_retriever

    asyncio.run(serve(open_retriever(retriever, tier=tier, index=index, url=retriever_url), host, port))


@app.command("check-harness")
def check_harness_command(
    file: Annotated[Path, typer.Argument(help="A harness file.")],
    domain: Annotated[list[str] | None, typer.Option("--domain", help="Only this environment.")] = None,
) -> None:
    """Check a harness file against the contract; prints a line for each finding."""
    import asyncio

    from whale_bench.harness.check import check_harness
    from whale_envs import UsageError, get_domain

    if not file.is_file():
        raise UsageError(f"harness file {str(file)!r} does not exist")
    domains = tuple(get_domain(name).name for name in domain) if domain else None
    findings = asyncio.run(check_harness(file, domains))
    for finding in findings:
        typer.echo(f"{finding.message}" + (f"  [{finding.domain}]" if finding.domain else ""))
    if findings:
        raise typer.Exit(FINDINGS)
    typer.echo(f"{file}: holds the contract")


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def main() -> None:
    """The console script: typed errors become one line and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without UTF-8 gets question marks
            stream.reconfigure(errors="replace")
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        from whale_envs.errors import InfrastructureError, UsageError

        if isinstance(error, UsageError | InfrastructureError):
            sys.stderr.write(f"whale-bench: {' '.join(str(error).split())}\n")
            sys.exit(MISUSE if isinstance(error, UsageError) else INCOMPLETE)
        raise


if __name__ == "__main__":
    main()
