"""An HTTP server with vLLM's routes; like a careless one it prints its whole environment and command line."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from vllm import received

FAULT = os.environ.get("STAND_IN_FAULT", "")
WORKER = "import os, time; os.setsid(); time.sleep(600)"


def note(call, name=None):
    """A ROCTX call, where the stand-in for rocprofv3 listens."""
    if folder := os.environ.get("ROCTX_STAND_IN_LOG"):
        event = {"call": call, "name": name, "ns": time.monotonic_ns(), "thread": threading.get_native_id()}
        with open(f"{folder}/{os.getpid()}.jsonl", "a") as file:
            file.write(json.dumps(event) + "\n")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        bodies = {
            "/health": "",
            "/version": json.dumps({"version": os.environ.get("STAND_IN_VERSION", "0.32.0")}),
            "/metrics": "",
        }
        self.answer(200 if self.path in bodies else 404, bodies.get(self.path, ""))

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answering = bool(asked.get("logprobs"))
        deadly = "answering" if answering else "under load"
        if deadly == FAULT:
            print("RuntimeError: HIP out of memory", flush=True)
            os._exit(9)
        if FAULT == "slow death" and not answering:
            # Connections are gone at once, the process only later: it waits for its workers.
            print("RuntimeError: HIP out of memory", flush=True)
            self.server.socket.close()
            self.connection.close()
            time.sleep(3)
            os._exit(9)
        time.sleep(0.01 + 0.02 * (asked["seed"] % 7) if "seed" in asked else 0)
        tokens = asked["max_tokens"]
        logprobs = {"tokens": ["w7"] * tokens, "token_logprobs": [-0.5] * tokens, "top_logprobs": None}
        self.answer(200, json.dumps({"choices": [{"token_ids": [7] * tokens, "logprobs": logprobs}]}))

    def answer(self, code, body):
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


class Sharing(ThreadingHTTPServer):
    """vLLM's socket lets other servers listen on its port too."""

    def server_bind(self):
        if os.environ.get("STAND_IN_SHARES_PORT"):
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        super().server_bind()


def leave_shared_memory(name):
    """As vLLM's CPU ranks do: a file that stays."""
    import mmap

    with open(f"/dev/shm/{name}", "wb+") as file:
        file.truncate(4096)
        return mmap.mmap(file.fileno(), 4096)


def main(arguments):
    shared = leave_shared_memory(os.environ["STAND_IN_SHM"]) if "STAND_IN_SHM" in os.environ else None  # noqa: F841
    received(arguments)
    print("arguments:", *arguments)
    print("environment:", json.dumps(dict(os.environ)), flush=True)
    if FAULT == "refused":
        print(
            "latent_moe: tail",
            os.environ.get("LATENT_MOE_TAIL"),
            "refused, layers end as vLLM ends them: no GPU",
        )
    elif FAULT != "no plugin":
        print("latent_moe: tail", os.environ.get("LATENT_MOE_TAIL"), "ran the up-projection GEMM M=T N=8 K=4")
    if FAULT == "root cause above":
        print("ERROR [core.py:1] torch.OutOfMemoryError: HIP out of memory. Tried to allocate 20.00 GiB")
        print("RuntimeError: Engine core initialization failed. See root cause above.", flush=True)
        raise SystemExit(1)
    if FAULT == "loading":
        print("loading weights")
        print("ValueError: no such file: model-00001.safetensors", flush=True)
        raise SystemExit(3)
    # A worker that leaves the server's session, as careless code does.
    subprocess.Popen([sys.executable, "-c", WORKER])
    port = int(arguments[arguments.index("--port") + 1]) if "--port" in arguments else 8000
    server = Sharing(("127.0.0.1", port), Handler)
    server.daemon_threads = True

    leaving = []

    def leave(*_):
        if leaving:
            return
        leaving.append(True)
        time.sleep(float(os.environ.get("STAND_IN_LEAVES_AFTER_S", "0")))
        note("rangePop")
        raise SystemExit(0)

    note("rangePush", "served")

    signal.signal(signal.SIGTERM, leave)
    server.serve_forever(poll_interval=0.05)


if __name__ == "__main__":
    main(sys.argv[1:])
