"""vLLM's server entry since 0.32."""

import sys

from vllm.entrypoints.openai.api_server import main

if __name__ == "__main__":
    main(sys.argv[1:])
