"""An own agent as a process that speaks JSON lines; the same could be written in any language.

whale-bench eval math_python --model "process:python3 examples/agent_lines.py" -n 2 -k 2
"""

import json
import re
import sys

print(json.dumps({"type": "hello", "version": 1, "concurrent": True}), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    if message["type"] == "end":
        continue
    seen = message["observation"]
    action = rf"\boxed{{{seen.strip()[:20]}}}"
    if moves := re.findall(r"\[([a-h]\d[a-h]\d\w?)\]", seen):
        action = moves[-1]
    elif message["type"] == "start" and message["domain"] == "math_python":
        code = "print(" + "+".join(re.findall(r"[1-9]\d*", seen) or ["0"]) + ")"
        action = json.dumps({"tool": "code_interpreter", "arguments": {"code": code}})
    print(json.dumps({"rollout": message["rollout"], "action": action}), flush=True)
