"""vLLM's server on standby: `python -m latent_moe.lab.bench.vllm_server GO ARGUMENTS` imports what the server needs,
waits for the file GO, then is `python -m vllm.entrypoints.openai.api_server ARGUMENTS`.

Imports are most of a boot on a fast machine. Nothing of the server itself exists before GO: no port, no engine, no
device memory.
"""

import runpy
import sys
import time
from pathlib import Path

MODULE = "vllm.entrypoints.openai.api_server"
_POLL_S = 0.05


def main(go: str, arguments: list[str]) -> None:
    """Import, wait for `go`, serve."""
    __import__(MODULE)
    while not Path(go).exists():
        time.sleep(_POLL_S)
    sys.argv = [MODULE, *arguments]
    runpy.run_module(MODULE, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
