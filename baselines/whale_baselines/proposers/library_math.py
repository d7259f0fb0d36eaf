r"""Mechanisms of Math with Python.

Answers must stand in `\boxed{}` in what the model said, so nothing here can box an answer for it: the
mechanisms show how, remind, ask again, and cut off what follows the first box.

Not covered: calls of the interpreter in native tool mode.
"""

from whale_baselines.proposers import library_common as common
from whale_baselines.proposers.draft import Draft, literal
from whale_baselines.proposers.mechanism import Mechanism, Params
from whale_baselines.proposers.skeletons import nudge

SYSTEM = (
    "You solve mathematics problems. The answer is always one integer, and you give it as \\boxed{integer}.",
    "You are a careful mathematician who writes short Python programs to check what can be computed.",
    "Reply with the final answer only, in the form \\boxed{42}.",
)
USER = (
    "{observation}\n\nReply with \\boxed{} around the answer and nothing else.",
    "Problem: {observation}\n\nFirst line of your reply: the answer as \\boxed{integer}.",
    "{observation}\n\nIf it takes more than a line of arithmetic, write one ```python block that prints the "
    "answer; you will see its output. Then give the answer as \\boxed{integer}.",
    "Solve this problem step by step, briefly, and end with \\boxed{integer}.\n\n{observation}",
)
REMINDERS = (
    "Now give the final answer in \\boxed{}.",
    "That was the program's output. If it is the answer, reply with it in \\boxed{} and nothing else.",
)
RECOVERY = (
    "Your reply had no \\boxed{} answer. Give only the final answer, in \\boxed{}.",
    "What is the answer? Write \\boxed{integer}, without a word more.",
)
RETRIES = (
    "The program failed. Correct it and run it again, or answer in \\boxed{}.",
    "That did not run. Do not run anything more: answer in \\boxed{} from what you know.",
)


def _remind(draft: Draft, wording: str) -> None:
    draft.shown.append(f"text += {literal(chr(10) * 2 + wording)}")


def _recover(draft: Draft, wording: str) -> None:
    draft.late += [r'if not last and r"\boxed{" not in text:', f"    {nudge(wording)}"]


def _retry(draft: Draft, wording: str) -> None:
    draft.after += [
        'if turn.action is not None and turn.event != "ok":',
        f"    text += {literal(chr(10) * 2 + wording)}",
    ]


def _last_lines(draft: Draft, params: Params) -> None:
    lines = params["lines"]
    draft.shown.append(f'text = "\\n".join(text.rstrip().split("\\n")[-{lines}:])')


def _first_box(draft: Draft, params: Params) -> None:  # noqa: ARG001
    draft.constants.append(r'BOX = re.compile(r"\\boxed\{[^{}]*\}")')
    draft.late += ["box = BOX.search(text)", "if box:", "    text = text[: box.end()]"]


def _tolerant(draft: Draft, params: Params) -> None:  # noqa: ARG001
    draft.constants.append('TAGGED = re.compile(r"<(python|code|tool_call)>(.*?)</\\1>", re.DOTALL)')
    draft.early += [
        "tagged = TAGGED.search(text)",
        "if tagged and not last and not has_fence(text):",
        '    call = {"tool": "code_interpreter", "arguments": {"code": normalise(tagged[2])}}',
        "    return Act(json.dumps(call))",
    ]


def _keep_variables(draft: Draft, params: Params) -> None:  # noqa: ARG001
    draft.options["keep_state"] = 1


def mechanisms() -> list[Mechanism]:
    """In the order in which they are written."""
    runs = "runs = sum(turn.action is not None for turn in view.turns)"
    return [
        common.examples({"bare": "{answer}", "as a sentence": "The answer is {answer}."}),
        *common.prompts(SYSTEM, USER),
        common.turn_budget((1, 3, 4, 6)),
        common.token_cap((16, 32, 64, 128, 256, 512)),
        common.plain(
            "last_lines",
            "Of what a program prints, shows the last lines only ({lines}).",
            "The result, or the error, stands at the end; the rest distracts.",
            _last_lines,
            lines=(1, 3, 10),
        ),
        common.worded(
            "retry_wording",
            "After a program that failed, says what to do next",
            "A model left alone with an error repeats the program that made it.",
            RETRIES,
            _retry,
        ),
        common.worded(
            "box_reminder",
            "Reminds of the box after a program has run",
            "After a program's output the model forgets the form of the answer.",
            REMINDERS,
            _remind,
        ),
        common.plain(
            "tolerant_calls",
            "Takes a program in <python> or <code> tags for a call.",
            "Models call in the form they were trained on, whatever the prompt says.",
            _tolerant,
        ),
        common.worded(
            "recover_answer",
            "Asks once more where a reply has no box and a turn is left",
            "An answer that was found but not boxed is lost; a turn for the form alone saves it.",
            RECOVERY,
            _recover,
        ),
        common.plain(
            "first_box",
            "Ends the response at its first box.",
            "A small model that has answered goes on with problems of its own, and the last box counts.",
            _first_box,
        ),
        common.plain(
            "keep_variables",
            "Variables live on from program to program.",
            "A second program can go on where the first one failed.",
            _keep_variables,
        ),
        common.state_line(
            [runs], "Programs run: {runs}.", "how many programs ran and how many turns are left"
        ),
        common.compact_history((1, 2), "The problem and the last output fit better into a small context."),
        common.stop_repeats(),
    ]
