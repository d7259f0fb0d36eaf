"""A server started on a folder, as vLLM is, with log-probabilities that follow from its weights.

    python folder_server.py FOLDER PORT [HOW MARKS]

HOW: "old" serves what it was started on first, whatever comes later (MARKS is a folder to remember it in);
"child" leaves a child of its own that ignores SIGTERM, its number in MARKS; "deaf" ignores SIGTERM;
"broken" ends at once. No model is loaded: it starts in a moment, and what is tested is who is served.
"""

import hashlib
import json
import random
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_SLEEPER = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"


def logprobs_of(folder, prompts):
    """Of every token but the first of each prompt; other weights, other numbers."""
    digest = hashlib.sha256((Path(folder) / "model.safetensors").read_bytes()).hexdigest()
    return [
        random.Random(f"{digest} {at} {prompt[: at + 1]}").uniform(-6, 0)
        for prompt in map(tuple, prompts)
        for at in range(1, len(prompt))
    ]


class Handler(BaseHTTPRequestHandler):
    folder = ""

    def do_GET(self):
        self.answer({"data": [{"id": "policy"}]})

    def do_POST(self):
        prompt = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["prompt"]
        found = zip(prompt[1:], logprobs_of(self.folder, [prompt]), strict=True)
        told = [None, *({str(token): {"logprob": value}} for token, value in found)]
        self.answer({"choices": [{"prompt_logprobs": told}]})

    def answer(self, what):
        body = json.dumps(what).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def main(folder, port, how="", marks=""):
    if how == "broken":
        sys.exit("out of memory, says the server")
    if how == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if how == "old":
        first = Path(marks) / "first"
        if not first.exists():
            first.write_text(folder)
        folder = first.read_text()
    if how == "child":
        child = subprocess.Popen([sys.executable, "-c", _SLEEPER], stdout=subprocess.PIPE)
        child.stdout.readline()
        (Path(marks) / "child").write_text(str(child.pid))
    Handler.folder = folder
    ThreadingHTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
