"""An own agent in Python, without a model: it looks things up, or takes a check or a capture at random.

whale-bench eval chess_puzzles --model agent:examples/agent_python.py:Agent -n 2 -k 2
"""

import json
import random
import re


class Agent:
    def reset(self, info):
        self.info, self.random = info, random.Random(info["seed"])

    def act(self, observation):
        if self.info["domain"] == "chess_puzzles":
            moves = re.findall(r"\[(\w+)\] (\S+)", observation.rpartition("Legal moves:")[2])
            sharp = [move for move, san in moves if "+" in san or "x" in san]
            return self.random.choice(sharp or [move for move, _ in moves])
        if self.info["domain"] == "search_qa" and not observation.startswith('{"result"'):
            return json.dumps({"tool": "search", "arguments": {"query": observation}})
        words = re.findall(r"[A-Z]\w+|\d+", observation) or ["nothing"]
        return rf"<answer>{words[-1]}</answer> \boxed{{{words[-1]}}}"
