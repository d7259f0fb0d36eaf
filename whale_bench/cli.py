"""The command `whale-bench`: evaluate, compare, view, export, and what helps with it.

    whale-bench eval chess_puzzles --model scripted/random -n 8

Exit codes: 0 done; 1 findings of check-harness; 2 misuse, with one line that says what; 3 incomplete,
some rollouts are missing; 130 interrupted. Heavy modules are imported inside the commands, so that
--help answers at once.

Not covered: training, search, submissions.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from whale_bench.check_command import check_harness_command
from whale_bench.console import FINDINGS, INCOMPLETE, run_app

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
        list[str] | None,
        typer.Option(
            help="Server of openai/NAME (several times to spread the load), anthropic/NAME, "
            "or of your own agent's model calls."
        ),
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Folder with openai/NAME's tokenizer: send prompts as token ids.")
    ] = None,
    family: Annotated[
        list[str] | None, typer.Option(help="Only the examples of this family; may be given several times.")
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
    chat_template_kwargs: Annotated[
        str | None,
        typer.Option(help="Switches of the model's chat template, JSON: '{\"enable_thinking\": true}'."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say how many rollouts, calls and tokens it would take.")
    ] = False,
    bootstrap: Annotated[
        bool, typer.Option("--bootstrap", help="Intervals by resampling examples, not by Student's t.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summaries as JSON instead.")] = False,
) -> None:
    """Evaluate a model with a harness: mean@k, an interval, every trajectory on disk."""
    from whale_bench import commands
    from whale_envs.errors import UsageError

    servers = base_url[0] if base_url and len(base_url) == 1 else tuple(base_url or ()) or None
    if resume is not None:
        given = [name for name in context.params if _is_given(context, name)]
        mine = {"resume", "as_json", "dry_run", "bootstrap"}
        mine |= {"base_url", "retriever_url", "judge_url", "python_url"}
        if others := sorted(set(given) - mine):
            raise UsageError(f"--resume takes everything from the run folder; leave out {', '.join(others)}")
        runs = [commands.Run(None, resume, servers, retriever_url, judge_url, python_url)]
    elif domain is None or not model:
        raise UsageError("eval needs an environment and --model; see `whale-bench list`")
    else:
        from whale_bench.agents.names import is_own_agent
        from whale_bench.evaluation import EvalPlan
        from whale_bench.models.registry import TEMPLATED

        switches = commands.json_object("--chat-template-kwargs", chat_template_kwargs)
        several = len(model) > 1  # one server and, say, a fixture to compare with
        served = ("openai/", "anthropic/", "agent:", "process:")
        plans = [
            EvalPlan(
                domain=domain, model=name, tier=tier, split=split, profile=cast("Profile", profile), n=n, k=k,
                families=tuple(family) if family else None,
                seed=seed, concurrency=concurrency, harness=harness, max_tokens=max_tokens,
                base_url=None if several and not name.startswith(served) else servers,
                tokenizer=None if several and not name.startswith("openai/") else tokenizer,
                agent_seconds=None if several and not is_own_agent(name) else agent_seconds,
                token_budget=token_budget, python_url=python_url, unsafe_python=unsafe_python,
                retriever=retriever, index=index, retriever_url=retriever_url, judge=judge,
                judge_url=judge_url, closed_book=closed_book or None, temperature=temperature, top_p=top_p,
                top_k=top_k,
                chat_template_kwargs=None if several and not name.startswith(TEMPLATED) else switches,
            )
            for name in model
        ]  # fmt: skip
        runs = commands.place(plans, out)
    runs = [run._replace(bootstrap=bootstrap) for run in runs]
    if dry_run:
        from whale_bench.forecast import show_forecasts

        show_forecasts([(run.plan, run.folder) for run in runs], as_json=as_json)
        return
    summaries: list[Summary] = []
    try:
        commands.evaluate_all(runs, summaries, quiet=as_json)
    finally:
        if summaries:
            commands.show(summaries, runs[: len(summaries)], as_json=as_json)
    if any(not summary.complete for summary in summaries):
        raise typer.Exit(INCOMPLETE)


@app.command("compare")
def compare_command(
    run_a: Annotated[Path, typer.Argument(help="Folder of the run to compare with.")],
    run_b: Annotated[Path, typer.Argument(help="Folder of the run whose difference from it is shown.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON instead.")] = False,
    show: Annotated[int, typer.Option(min=0, help="Most rows of a list; --json has all.")] = 10,
    bootstrap: Annotated[
        bool, typer.Option("--bootstrap", help="Intervals by resampling examples, not by Student's t.")
    ] = False,
    incomplete: Annotated[
        bool, typer.Option("--incomplete", help="Give a p-value although rollouts are missing; exit with 0.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of resamples and of drawn p-values.")] = 0,
) -> None:
    """Compare two runs on the same examples: difference, interval, p-value, and what flipped."""
    from whale_bench.compare import compare
    from whale_bench.comparison_table import show_comparison

    found = compare(run_a, run_b, bootstrap=bootstrap, incomplete=incomplete, seed=seed)
    show_comparison(found, most=show, as_json=as_json)
    if not found.complete and not incomplete:
        raise typer.Exit(INCOMPLETE)


@app.command("export")
def export_command(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    form: Annotated[str, typer.Option("--to", help="inspect, datasets or events.")],
    out: Annotated[Path, typer.Option(help="What to make: *.eval or *.json, a folder, a JSONL file.")],
) -> None:
    """Write a run for other tools: a log of inspect_ai, a dataset of rollouts, the ledger's events."""
    from whale_bench.export import export

    export(run, form, out)
    typer.echo(f"{out}: {form} of {run}")


@app.command("schema")
def schema_command(name: Annotated[str, typer.Argument(help="run, rollout, summary or event.")]) -> None:
    """Print the JSON Schema of a file that a run leaves behind."""
    from whale_bench.schemas import read_schema

    typer.echo(read_schema(name), nl=False)


@app.command()
def view(
    run: Annotated[Path, typer.Argument(help="A run folder; with --serve also a folder of runs.")],
    out: Annotated[
        Path | None, typer.Option(help="Page to write; without it, report.html in the run.")
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve runs of any size to this machine's browser, till Ctrl-C.")
    ] = False,
    port: Annotated[int, typer.Option(help="Of --serve; 0 takes a free one.")] = 0,
    no_open: Annotated[bool, typer.Option("--no-open", help="Open no browser.")] = False,
) -> None:
    """Look at a run: scores, distributions, every rollout replayed, in one page or by a server."""
    from whale_bench.view import command
    from whale_envs.errors import UsageError

    if serve:
        if out is not None:
            raise UsageError(f"--serve writes no page: leave out --out {out}")
        command.serve(run, port=port, browser=not no_open)
    else:
        if port:
            raise UsageError(f"--port {port} is of --serve, which is not given")
        command.show(run, out=out, browser=not no_open)


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
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False,
) -> None:
    """Show what this machine has for the suite, what is broken or missing, and what mends it."""
    from whale_bench import commands

    if not commands.show_doctor(as_json=as_json):
        raise typer.Exit(FINDINGS)


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


app.command("check-harness")(check_harness_command)


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def main() -> None:
    """The console script."""
    run_app(app, "whale-bench")


if __name__ == "__main__":
    main()
