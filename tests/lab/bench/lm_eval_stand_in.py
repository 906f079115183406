"""A stand-in for lm_eval's program: takes its arguments, asks the server, leaves a real result file of lm_eval's."""

import argparse
import json
import os
import sys
import time
import urllib.request
from pathlib import Path

FIXTURE = Path(__file__).parents[2] / "fixtures" / "results" / "lm_eval_0_4_13_tiny.json"


def main(argv):
    parser = argparse.ArgumentParser(prog="lm_eval", allow_abbrev=False)
    for name in ("model", "model_args", "tasks", "num_fewshot", "seed", "output_path"):
        parser.add_argument(f"--{name}", required=True)
    args = parser.parse_args(argv)
    given = dict(pair.split("=", 1) for pair in args.model_args.split(","))
    body = json.dumps({"prompt": "w", "max_tokens": 2, "logprobs": 1}).encode()
    urllib.request.urlopen(urllib.request.Request(given["base_url"], body), timeout=10).read()
    if os.environ.get("LM_EVAL_STAND_IN_FAILS"):
        print("requests.exceptions.HTTPError: 400 Bad Request")
        return 1
    target = Path(args.output_path) / given["model"]
    target.mkdir(parents=True)
    result = json.loads(FIXTURE.read_text())
    result["config"]["model_args"] = given
    stamp = time.strftime("%Y-%m-%dT%H-%M-%S.000001")
    (target / f"results_{stamp}.json").write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
