"""The hooks of each domain's h0, with the places that mechanisms fill.

    draft = start("math_python")            # h0 as a draft
    source = finish(draft, "math_python", header="# mutate: {}")

Not covered: the mechanisms themselves.
"""

import ast
from typing import Any

from whale_baselines.proposers.draft import Draft, assemble, block, class_constants, example_constant, literal
from whale_bench.harness.host import shipped_harnesses
from whale_envs.errors import UnknownNameError

_SEARCH = 'SEARCH = re.compile(r"<search>([^<>]*)</search>")'
_FORMS = r"""FORMS = (
    re.compile(r"<move>\s{0,8}([^<>]{1,40}?)\s{0,8}</move>", re.IGNORECASE),
    re.compile(r"\[([a-h][1-8][a-h][1-8][qrbn]?)\]"),
    re.compile(r"(?<![A-Za-z0-9])([a-h][1-8][a-h][1-8][qrbn]?)(?![A-Za-z0-9]|[=/(][QRBNqrbn])"),
)"""

_PAIR = '''def worked(prompt: str, texts: tuple[str, ...]) -> list[ChatMessage]:
    """A solved example as turns of a chat."""
    question, answer = texts[0], texts[-1]
    return [
        {"role": "user", "content": prompt.replace("{observation}", ASKED)},
        {"role": "assistant", "content": answer},
    ]'''
_SEARCHED = '''def worked(prompt: str, texts: tuple[str, ...]) -> list[ChatMessage]:
    """A solved example as turns of a chat, with its search where it has one."""
    question, answer = texts[0], texts[-1]
    chat: list[ChatMessage] = [{"role": "user", "content": prompt.replace("{observation}", question)}]
    if len(texts) == 4:
        query, passages = texts[1:3]
        chat.append({"role": "assistant", "content": f"<search>{query}</search>"})
        chat.append({"role": "user", "content": FOUND})
    return [*chat, {"role": "assistant", "content": answer}]'''
_EVIDENCE = '''def worked(prompt: str, texts: tuple[str, ...]) -> list[ChatMessage]:
    """A solved example as turns of a chat, with what a search found in the question's message."""
    question, answer = texts[0], texts[-1]
    text = prompt.replace("{observation}", question)
    if len(texts) == 4:
        passages = texts[2]
        text += f"\\n\\n{FOUND}"
    return [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]'''


def start(domain: str) -> Draft:
    """The domain's h0.

    Raises:
        UnknownNameError: there is no such domain.
    """
    shipped = shipped_harnesses()
    if domain not in shipped:
        raise UnknownNameError("environment", domain, shipped)
    constants = _constants(shipped[domain])
    return Draft(
        system=constants.get("SYSTEM_PROMPT", ""),
        user=constants["USER_PROMPT"],
        max_turns=constants["MAX_TURNS"],
        options=dict(constants.get("ENV_OPTIONS", {})),
    )


def finish(draft: Draft, domain: str, header: str) -> str:
    """The file of a draft."""
    constants = list(draft.constants)
    constants += {"search_qa": [_SEARCH], "chess_puzzles": [_FORMS]}.get(domain, [])
    constants += example_constant(draft)
    read = {"math_python": _read_math, "search_qa": _read_search, "chess_puzzles": _read_chess}[domain]
    show = {"chess_puzzles": _messages_chess}.get(domain, _messages)
    body = "class Harness(BaseHarness):\n" + class_constants(draft) + "\n" + show(draft) + "\n" + read(draft)
    if draft.stop:
        body += "\n    def stop(self, view: View) -> bool:\n"
        body += block([f"return {' or '.join(draft.stop)}"], 8)
    helpers = list(draft.helpers)
    if draft.examples:
        helpers.append(_worked(draft, domain))
    if draft.shown:
        doc = '"""An observation as the model is shown it."""'
        helpers.append(
            "def shown(text: str, question: str) -> str:\n" + block([doc, *draft.shown, "return text"], 4)
        )
    return assemble(draft, domain, header, [*(["\n".join(constants)] if constants else []), body, *helpers])


def _constants(source: str) -> dict[str, Any]:
    """What the class of a shipped file sets to literals."""
    [harness] = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    found: dict[str, Any] = {}
    for node in harness.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            assert isinstance(target, ast.Name)
            found[target.id] = ast.literal_eval(node.value)
    return found


def _worked(draft: Draft, domain: str) -> str:
    found = "shown(passages, question)" if draft.shown else "passages"
    asked = "shown(question, question)" if draft.shown and domain == "chess_puzzles" else "question"
    if domain != "search_qa":
        return _PAIR.replace("ASKED", asked)
    if draft.evidence_first:
        return _EVIDENCE.replace("FOUND", found)
    return _SEARCHED.replace("FOUND", found)


def _opening(draft: Draft) -> list[str]:
    """Statements that begin the chat."""
    lines = ["chat: list[ChatMessage] = []"]
    if draft.system:
        lines.append('chat.append({"role": "system", "content": self.SYSTEM_PROMPT})')
    if draft.examples:
        lines += ["for texts in EXAMPLES:", "    chat += worked(self.USER_PROMPT, texts)"]
    return lines


def _turns(draft: Draft) -> str:
    if draft.keep is None:
        return "view.turns"
    return f"view.turns[-{draft.keep}:]" if draft.keep else "()"


def _text(draft: Draft) -> list[str]:
    """Statements that set `text` to what is shown of `turn`."""
    lines = ["text = turn.observation"]
    if draft.shown:
        lines += ["if turn.action is not None:", "    text = shown(text, view.opening)"]
    return lines + draft.after


def _messages(draft: Draft) -> str:
    lines = _opening(draft)
    prompt = 'self.USER_PROMPT.replace("{observation}", view.opening)'
    if draft.evidence_first:
        lines += [f"parts = [{prompt}]", f"for turn in {_turns(draft)}:"]
        lines += ["    " + line for line in "\n".join(_text(draft)).split("\n")]
        lines += ["    parts.append(text)"]
        lines += ['chat.append({"role": "user", "content": "\\n\\n".join(parts)})']
    else:
        lines += [f'chat.append({{"role": "user", "content": {prompt}}})', f"for turn in {_turns(draft)}:"]
        lines += ["    " + line for line in "\n".join(_text(draft)).split("\n")]
        lines += ['    chat.append({"role": "assistant", "content": turn.reply.text})']
        lines += ['    chat.append({"role": "user", "content": text})']
    return _hook("messages(self, view: View) -> list[ChatMessage]", [*lines, *draft.tail, "return chat"])


def _messages_chess(draft: Draft) -> str:
    lines = _opening(draft)
    if draft.keep != 0:
        lines += [f"for turn in {_turns(draft)}:", "    text = turn.feedback"]
        lines += ["    " + line for line in "\n".join(draft.after).split("\n") if line]
        lines += ['    chat.append({"role": "assistant", "content": turn.reply.text})']
        lines += ['    chat.append({"role": "user", "content": text})']
    position = "shown(view.observation, view.opening)" if draft.shown else "view.observation"
    lines += [f'prompt = self.USER_PROMPT.replace("{{observation}}", {position})']
    lines += ['chat.append({"role": "user", "content": prompt})']
    return _hook("messages(self, view: View) -> list[ChatMessage]", [*lines, *draft.tail, "return chat"])


def _read_math(draft: Draft) -> str:
    call = '{"tool": "code_interpreter", "arguments": {"code": normalise(text)}}'
    final = "\n".join("    " + line for line in "\n".join([*draft.late, "return Act(text)"]).split("\n"))
    lines = ["text = reply.text", _LAST, *draft.early, "if last or not has_fence(text):", final]
    return _hook(_READ, [*lines, f"return Act(json.dumps({call}))"])


def _read_search(draft: Draft) -> str:
    final = "\n".join("    " + line for line in "\n".join([*draft.late, "return Act(text)"]).split("\n"))
    lines = ["text = reply.text", _LAST, "asked = SEARCH.findall(text)", *draft.early]
    lines += ["if not asked or last:", final, "query = asked[0].strip()", *draft.query]
    call = '{"tool": "search", "arguments": {"query": query}}'
    return _hook(_READ, [*lines, f"return Act(json.dumps({call}))"])


def _read_chess(draft: Draft) -> str:
    uses_last = any("last" in line for line in (*draft.early, *draft.picked, *draft.late))
    lines = ["text = reply.text", *([_LAST] if uses_last else []), *draft.early]
    lines += ["for form in FORMS:", "    moves = set(form.findall(text))", "    if len(moves) == 1:"]
    if draft.picked:
        lines += ["        move = moves.pop()"]
        lines += ["        " + line for line in "\n".join(draft.picked).split("\n")]
        lines += ["        return Act(move)"]
    else:
        lines += ["        return Act(moves.pop())"]
    lines += ["    if moves:", "        break", *draft.late, "return Act(text)"]
    return _hook(_READ, lines)


_READ = "read(self, reply: Reply, view: View) -> Decision"
_LAST = "last = len(view.turns) + 1 >= view.max_turns"


def _hook(signature: str, lines: list[str]) -> str:
    return f"    def {signature}:\n" + block(lines, 8)


def nudge(message: str) -> str:
    """The statement that asks again with this message."""
    return f"return Nudge({literal(message)})"
