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
    if message["type"] == "start" and message["tools"] and message["domain"] == "math_python":
        numbers = re.findall(r"\d+", message["observation"]) or ["0"]
        action = {"tool": "code_interpreter", "arguments": {"code": f"print({'+'.join(numbers)})"}}
        answer = {"action": json.dumps(action)}
    else:
        answer = {"action": rf"\boxed{{{message['observation'].strip()[:20]}}}"}
    print(json.dumps({"rollout": message["rollout"], **answer}), flush=True)
