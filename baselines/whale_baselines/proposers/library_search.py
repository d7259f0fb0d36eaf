"""Mechanisms of SearchQA: most of them decide what is searched for and what of it is shown.

The arguments of a search are a harness's to write (architecture's provenance rule), an answer is not.

Not covered: several queries in one turn, which the environment does not have.
"""

from whale_baselines.proposers import library_common as common
from whale_baselines.proposers.draft import Draft, literal
from whale_baselines.proposers.mechanism import Mechanism, Params
from whale_baselines.proposers.skeletons import nudge

SYSTEM = (
    "You answer questions in a few words, from what a search shows.",
    "Copy the answer from the passages. Never explain.",
    "You answer factual questions. Always search before you answer.",
)
USER = (
    "Question: {observation}\n\nSearch first: <search>words</search>. Then answer: <answer>…</answer>.",
    "{observation}\n\nReply with <search>query</search> to look something up, or with "
    "<answer>a few words</answer>.",
    "Question: {observation}\n\nReply with nothing but <answer>…</answer>.",
    "Before you answer, check that a passage says it, that it answers what was asked, and that it is as "
    "short as it can be. Search with <search>…</search>, answer with <answer>…</answer>.\n\n"
    "Question: {observation}",
)
REMINDERS = (
    "Answer now, in a few words: <answer>…</answer>.",
    "Copy the words that answer the question into <answer>…</answer>.",
)
RECOVERY = (
    "Your reply had no answer tags. Give only the answer: <answer>…</answer>.",
    "Write <answer>, the answer in a few words, and </answer>.",
)
PLANS = (
    "Do not answer yet. Say in one line what has to be found out.",
    "Do not search yet. Which names and dates would a passage with the answer contain?",
)
RETRIES = (
    "Nothing was found. Search for fewer and rarer words, or answer.",
    "That search gave nothing. Answer from what you know.",
)

_WORDS = '''def words(text: str) -> list[str]:
    """The words that matter, in their order."""
    found = re.findall(r"\\w[\\w'.-]*\\w|\\w", text)
    return [word for word in found if word.lower() not in SMALL]'''
_SMALL = """SMALL = frozenset(
    "a an and are as at be by did do does for from had has have how in is it its of on or the to was were "
    "what when where which who whom whose why will with".split()
)"""
_DOCUMENTS = '''def documents(text: str) -> list[str]:
    """The numbered passages of a result."""
    return [part.strip() for part in re.split(r"(?m)^(?=Document \\d+:)", text) if part.strip()]'''
_PLAIN = '''def unwrapped(text: str) -> str:
    """A result without the JSON around it."""
    try:
        return str(json.loads(text)["result"])
    except (ValueError, KeyError, TypeError):
        return text'''


def _add(found: list[str], text: str) -> None:
    if text not in found:
        found.append(text)


def _words(draft: Draft) -> None:
    _add(draft.constants, _SMALL)
    _add(draft.helpers, _WORDS)


def _unwrap(draft: Draft) -> None:
    _add(draft.helpers, _PLAIN)
    _add(draft.shown, "text = unwrapped(text)")


def _plain_passages(draft: Draft, params: Params) -> None:  # noqa: ARG001
    _unwrap(draft)


def _more_passages(draft: Draft, params: Params) -> None:
    draft.options |= {"topk": params["topk"], "max_doc_tokens": params["tokens"]}


def _rerank(draft: Draft, params: Params) -> None:
    draft.options["topk"] = max(params["fetch"], draft.options["topk"])
    _words(draft)
    _unwrap(draft)
    _add(draft.helpers, _DOCUMENTS)
    draft.shown += [
        "wanted = {word.lower() for word in words(question)}",
        "found = documents(text)",
        "found.sort(key=lambda one: -len(wanted & {word.lower() for word in words(one)}))",
        f'text = "\\n\\n".join(found[:{params["keep"]}]) or text',
    ]


def _focus(draft: Draft, params: Params) -> None:
    _words(draft)
    _unwrap(draft)
    draft.shown += [
        "asked = {word.lower() for word in words(question)}",
        'sentences = re.split(r"(?<=[.!?])\\s+", text)',
        "ranked = sorted(sentences, key=lambda one: -len(asked & {word.lower() for word in words(one)}))",
        f"kept = set(ranked[:{params['sentences']}])",
        'text = " ".join(sentence for sentence in sentences if sentence in kept)',
    ]


def _evidence_first(draft: Draft, params: Params) -> None:  # noqa: ARG001
    draft.evidence_first = True


def _delay_search(draft: Draft, wording: str) -> None:
    draft.early += ["if not view.turns and not last:", f"    {nudge(wording)}"]


def _force_search(draft: Draft, params: Params) -> None:
    query = "view.opening"
    if params["query"] == "its keywords":
        _words(draft)
        query = '" ".join(words(view.opening)) or view.opening'
    draft.early += [
        "if not asked and not last and all(turn.action is None for turn in view.turns):",
        f"    asked = [{query}]",
    ]


def _rewrite_query(draft: Draft, params: Params) -> None:
    if params["rule"] == "with the question":
        draft.query.append('query = f"{query} {view.opening}"')
        return
    _words(draft)
    if params["rule"] == "keywords":
        draft.query.append('query = " ".join(words(query)) or query')
    elif params["rule"] == "keywords and the question's":
        draft.query.append('query = " ".join(dict.fromkeys([*words(query), *words(view.opening)])) or query')
    else:
        draft.query += [
            "names = [word for word in words(view.opening) if word[0].isupper() or word[0].isdigit()]",
            'query = " ".join(dict.fromkeys([*words(query), *names])) or query',
        ]


def _no_repeats(draft: Draft, params: Params) -> None:  # noqa: ARG001
    message = "You have searched for that already. Search for something else, or answer."
    draft.early += [
        "searched = {old.strip() for turn in view.turns for old in SEARCH.findall(turn.reply.text)}",
        "if asked and not last and asked[0].strip() in searched:",
        f"    {nudge(message)}",
    ]


def _tolerant(draft: Draft, params: Params) -> None:  # noqa: ARG001
    pattern = r'LOOSE = re.compile(r"(?im)<search>([^<>\n]+)$|^\W*search(?: query)?\s*[:(]\s*([^\n)]+)")'
    draft.constants.append(pattern)
    draft.early += [
        'loose = LOOSE.search(text) if not asked and "<answer>" not in text else None',
        "if loose:",
        "    asked = [loose[1] or loose[2]]",
    ]


def _remind(draft: Draft, wording: str) -> None:
    draft.after += ["if turn.action is not None:", f"    text += {literal(chr(10) * 2 + wording)}"]


def _retry(draft: Draft, wording: str) -> None:
    draft.after += [
        'if turn.action is not None and turn.event != "ok":',
        f"    text += {literal(chr(10) * 2 + wording)}",
    ]


def _recover(draft: Draft, wording: str) -> None:
    draft.late += ['if not last and "<answer>" not in text:', f"    {nudge(wording)}"]


def _first_answer(draft: Draft, params: Params) -> None:  # noqa: ARG001
    draft.late += ['answer, closing, _ = text.partition("</answer>")', "text = answer + closing"]


_TITLES = '''def titles(view: View) -> str:
    """What has been found so far, by title."""
    shown = " ".join(turn.observation for turn in view.turns if turn.action is not None)
    found = dict.fromkeys(re.findall(r"Document \\d+: (.+?)(?:\\\\n|\\n|$)", shown))
    return "; ".join(found) or "nothing"'''


def _state_line() -> Mechanism:
    inner = common.state_line(
        [], "Found so far: {titles(view)}.", "which titles were found and how many turns are left"
    )

    def write(draft: Draft, params: Params) -> None:
        inner.write(draft, params)
        draft.helpers.append(_TITLES)

    return Mechanism(name=inner.name, summary=inner.summary, why=inner.why, write=write)


def mechanisms() -> list[Mechanism]:
    """In the order in which they are written."""
    return [
        common.examples({"bare": "{answer}"}),
        *common.prompts(SYSTEM, USER),
        common.turn_budget((3, 4, 6)),
        common.token_cap((24, 48, 96, 192, 512)),
        common.plain(
            "plain_passages",
            "Shows passages as text, without the JSON around them.",
            "Escaped line ends and quotes are noise to a small model.",
            _plain_passages,
        ),
        common.plain(
            "more_passages",
            "Asks for {topk} passages of {tokens} tokens.",
            "The first passage is often not the one with the answer.",
            _more_passages,
            topk=(2, 3, 5),
            tokens=(60, 100, 200, 400),
        ),
        common.plain(
            "rerank",
            "Fetches at least {fetch} passages and shows the {keep} that share most words with the question.",
            "The ranker saw the query alone; the question says more about what is wanted.",
            _rerank,
            fetch=(3, 5, 10),
            keep=(1, 2, 3),
        ),
        common.plain(
            "focus",
            "Of a result, shows the {sentences} sentences that share most words with the question.",
            "A small model copies an answer from a sentence, but not from three.",
            _focus,
            sentences=(1, 2, 3),
        ),
        common.plain(
            "evidence_first",
            "Puts what was found into the question's own message and leaves earlier replies out.",
            "A question with its evidence is a simpler task than a chat about a search.",
            _evidence_first,
        ),
        common.plain(
            "tolerant_calls",
            "Takes an open <search> tag and a line that begins with `search:` for a search.",
            "A search that was meant but not well formed is otherwise judged as the answer.",
            _tolerant,
        ),
        common.worded(
            "delay_search",
            "Asks for a plan before the first search",
            "A query written after a plan names what is missing.",
            PLANS,
            _delay_search,
        ),
        common.plain(
            "force_search",
            "Searches for {query} where the model would answer without a search.",
            "A small model answers from memory, which is mostly wrong.",
            _force_search,
            query=("the question", "its keywords"),
        ),
        common.plain(
            "no_repeats",
            "Refuses a search that was made before.",
            "The same search finds the same, and costs a turn.",
            _no_repeats,
        ),
        common.plain(
            "rewrite_query",
            "Rewrites queries by rule: {rule}.",
            "Models write queries as sentences; the ranker wants rare words.",
            _rewrite_query,
            rule=(
                "keywords",
                "with the question",
                "keywords and the question's",
                "with the names asked about",
            ),
        ),
        common.worded(
            "retry_wording",
            "After a search without a result, says what to do next",
            "A model left with an empty result repeats the search.",
            RETRIES,
            _retry,
        ),
        common.worded(
            "answer_reminder",
            "Reminds of the answer tags after a search",
            "After a passage the model goes on with the passage.",
            REMINDERS,
            _remind,
        ),
        common.worded(
            "recover_answer",
            "Asks once more where a reply has no answer tags and a turn is left",
            "An answer that was found but not tagged is lost; a turn for the form alone saves it.",
            RECOVERY,
            _recover,
        ),
        common.plain(
            "first_answer",
            "Ends the response at its first answer.",
            "A small model that has answered goes on with questions of its own, and the last answer counts.",
            _first_answer,
        ),
        _state_line(),
        common.compact_history((1, 2), "The question and the last result fit better into a small context."),
        common.stop_repeats(),
    ]
