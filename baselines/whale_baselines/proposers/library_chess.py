"""Mechanisms of Chess Puzzles: how a position is shown, and what becomes of a reply that is no move.

Moves are grouped and marked by what their SAN in the observation says (capture, check, mate), which a
harness may do; none is ranked. So that the order gives nothing away either, grouping leaves the first and
the last move of the list where they are.

Not covered: anything that looks at the position itself.
"""

from whale_baselines.proposers import library_common as common
from whale_baselines.proposers.draft import Draft, literal
from whale_baselines.proposers.mechanism import Mechanism, Params
from whale_baselines.proposers.skeletons import nudge

SYSTEM = (
    "You solve chess puzzles. Reply with one legal move and nothing else: <move>UCI</move>.",
    "You are a strong chess player. Look at every check, capture and threat, then give one move in <move> "
    "tags.",
    "Think as long as you need. Moves in brackets are notes; the last <move> tag is your decision.",
)
USER = (
    "{observation}\n\nYour move, in the form <move>e2e4</move>:",
    "{observation}\n\nCopy one move from the list of legal moves into <move></move>.",
    "{observation}\n\nName your two best candidates and the reply to each in one line, then decide: "
    "<move>UCI</move>.",
)
RETRIES = (
    "That cannot be played here. Copy one move from the list, letter by letter, into <move></move>.",
    "Not a legal move. Look at the list again and choose another.",
)
RECOVERY = (
    "Your reply had no move. Give one move from the list as <move>UCI</move>.",
    "Only the move, please: <move>UCI</move>.",
)

_LEGAL = r'LEGAL = re.compile(r"\[([a-h][1-8][a-h][1-8][qrbn]?)\] ([^\s,]+)")'
_KIND = '''def kind(san: str) -> str:
    """What the notation itself says of a move."""
    if san.endswith("#"):
        return "Checkmates"
    if san.endswith("+"):
        return "Checks"
    return "Captures" if "x" in san else "Other moves"'''
_GROUPED = '''def grouped(text: str) -> str:
    """The legal moves in groups; the first and the last of the list keep their places."""
    head, label, rest = text.partition("Legal moves: ")
    line, newline, tail = rest.partition("\\n")
    moves = LEGAL.findall(line)
    if not label or not moves:
        return text
    groups: dict[str, list[str]] = {}
    for uci, san in moves:
        groups.setdefault(kind(san), []).append(f"[{uci}] {san}")
    final = kind(moves[-1][1])
    lines = [(name, found) for name, found in groups.items() if name != final]
    if final == kind(moves[0][1]) and lines:
        lines = [(final, groups[final][:-1]), *lines, (final, groups[final][-1:])]
    else:
        lines.append((final, groups[final]))
    shown = "\\n".join(f"{name}: {', '.join(found)}" for name, found in lines if found)
    return f"{head}Legal moves:\\n{shown}{newline}{tail}"'''
_MARKED = '''def marked(text: str) -> str:
    """The legal moves, each with a word for what its notation says."""
    names = {"Checkmates": " (checkmate)", "Checks": " (check)", "Captures": " (capture)"}
    return LEGAL.sub(lambda move: move[0] + names.get(kind(move[2]), ""), text)'''


def _add(found: list[str], *texts: str) -> None:
    found += [text for text in texts if text not in found]


def _marks(draft: Draft, params: Params) -> None:
    _add(draft.constants, _LEGAL)
    _add(draft.helpers, _KIND, _GROUPED if params["how"] == "in groups" else _MARKED)
    draft.shown.append(f"text = {'grouped' if params['how'] == 'in groups' else 'marked'}(text)")


def _short(draft: Draft, params: Params) -> None:
    if params["without"] in ("board", "both"):
        draft.shown.append('text = re.sub(r"(?m)^(?:[1-8] |  a b)[^\\n]*\\n", "", text)')
    if params["without"] in ("FEN", "both"):
        draft.shown.append('text = re.sub(r"(?m)^FEN: [^\\n]*\\n", "", text)')


def _last_tag(draft: Draft, params: Params) -> None:  # noqa: ARG001
    draft.early += [
        "tags = FORMS[0].findall(text)",
        "if tags:",
        '    text = f"<move>{tags[-1]}</move>"',
    ]


def _tolerant(draft: Draft, params: Params) -> None:  # noqa: ARG001
    _add(draft.constants, _LEGAL)
    draft.late += [
        "names = {san for _, san in LEGAL.findall(view.observation)}",
        r"""said = {word.strip(".,;!?*_`'\"()") for word in text.split()} & names""",
        "if len(said) == 1:",
        "    return Act(said.pop())",
    ]


def _check_legal(draft: Draft, params: Params) -> None:  # noqa: ARG001
    _add(draft.constants, _LEGAL)
    draft.picked += [
        "legal = {uci for uci, _ in LEGAL.findall(view.observation)}",
        "if FORMS[2].fullmatch(move.lower()) and move.lower() not in legal and not last:",
        '    return Nudge(f"{move} is not among the legal moves. Choose one from the list.")',
    ]


def _retry_budget(draft: Draft, params: Params) -> None:
    draft.options |= {"format_retry_budget": params["retries"], "illegal_retry_budget": params["retries"]}


def _retry(draft: Draft, wording: str) -> None:
    draft.after += [
        'if turn.action is not None and turn.event != "ok":',
        f"    text = {literal(wording)}",
    ]


def _recover(draft: Draft, wording: str) -> None:
    draft.late += ["if not last:", f"    {nudge(wording)}"]


def _show_refused(draft: Draft, params: Params) -> None:  # noqa: ARG001
    draft.tail += [
        'refused = [turn.action for turn in view.turns if turn.action and turn.event == "illegal"]',
        "if refused:",
        '    chat[-1]["content"] += "\\n\\nRefused so far: " + ", ".join(action[:40] for action in refused)',
    ]


def mechanisms() -> list[Mechanism]:
    """In the order in which they are written."""
    missed = 'missed = sum(turn.event != "ok" for turn in view.turns)'
    return [
        common.examples({"in tags": "<move>{answer}</move>", "bare": "{answer}"}),
        *common.prompts(SYSTEM, USER),
        common.turn_budget((12, 18)),
        common.token_cap((16, 48, 256, 1024)),
        common.plain(
            "move_marks",
            "Shows {how} which legal moves are captures, checks and mates, as their notation says.",
            "Forcing moves solve most puzzles, and the marks of the notation are easily overlooked.",
            _marks,
            how=("in groups", "in words"),
        ),
        common.plain(
            "short_position",
            "Shows the position without {without}.",
            "A small model loses the list of moves behind two pictures of the same board.",
            _short,
            without=("board", "FEN", "both"),
        ),
        common.plain(
            "last_tag",
            "The last move tag decides.",
            "A model that thinks in writing tags candidates before it decides.",
            _last_tag,
        ),
        common.plain(
            "check_legal",
            "Asks again, at the cost of a turn, where the move is not in the list.",
            "The environment forgives one illegal move; a turn forgives each.",
            _check_legal,
        ),
        common.plain(
            "tolerant_moves",
            "Takes a legal move in SAN, where a reply has exactly one, for the move.",
            "Models write moves as people do.",
            _tolerant,
        ),
        common.plain(
            "retry_budget",
            "{retries} retries of each kind.",
            "A second retry costs a turn and may save the puzzle.",
            _retry_budget,
            retries=(0, 3, 10),
        ),
        common.worded(
            "retry_wording",
            "Says in other words that a move was refused",
            "What is to be done helps more than what was wrong.",
            RETRIES,
            _retry,
        ),
        common.worded(
            "recover_move",
            "Asks once more where a reply has no move",
            "A reply without a move costs a retry; asking for the form alone costs a turn.",
            RECOVERY,
            _recover,
        ),
        common.plain(
            "show_refused",
            "Lists the moves that were refused.",
            "A small model proposes the same illegal move again.",
            _show_refused,
        ),
        common.state_line(
            [missed],
            "Replies that were no move: {missed}.",
            "how many replies were no move and how many turns are left",
        ),
        common.compact_history(
            (0, 1, 2), "The position holds all that matters; earlier turns only lengthen it."
        ),
        common.stop_repeats(),
    ]
