"""A stand-in for rocprofv3: it takes only options of rocprofv3's documentation and writes what a recording is.

Options: "Using rocprofv3", ROCprofiler-SDK 1.1 (ROCm 7.1) for all but --selected-regions, which that tool's later
documentation (ROCm 7.13) adds. The application's ROCTX calls arrive through the roctx module beside this file; what
lies between profiler resume and pause becomes a rocpd database: the ranges, and one kernel in each.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from tools.studies.rocpd_writer import Dispatch, Marker, write_rocpd

FLAGS = ("--kernel-trace", "--marker-trace", "--hip-trace", "--rccl-trace", "--memory-copy-trace", "--stats")
FORMATS = ("csv", "json", "pftrace", "otf2", "rocpd")


def parse(argv):
    parser = argparse.ArgumentParser(prog="rocprofv3", allow_abbrev=False)
    for flag in (*FLAGS, "--selected-regions"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("-f", "--output-format", nargs="+", choices=FORMATS, default=["rocpd"])
    parser.add_argument("-d", "--output-directory", default=".")
    parser.add_argument("-o", "--output-file", default="%hostname%/%pid%")
    options = argv[: argv.index("--")]
    return parser.parse_args(options), argv[argv.index("--") + 1 :]


def recorded(events, selected):
    """Ranges of one process; with selected regions only those between resume and pause."""
    on, stack, found = not selected, [], []
    for event in events:
        if event["call"] in ("profilerResume", "profilerPause"):
            on = event["call"] == "profilerResume"
        elif event["call"] == "rangePush":
            stack.append((event["name"], event["ns"], on))
        else:
            name, start, was_on = stack.pop()
            found += [Marker(name, start, event["ns"], event["thread"])] if was_on else []
    return found


def main(argv):
    options, application = parse(argv)
    log = Path(os.environ["ROCTX_STAND_IN_LOG"])
    (log / "options.json").write_text(json.dumps(vars(options)))
    code = subprocess.run(application, check=False).returncode
    for file in sorted(log.glob("*.jsonl")):
        markers = recorded(
            [json.loads(line) for line in file.read_text().splitlines()], options.selected_regions
        )
        name = "Cijk_Alik_Bljk_BBS_BH_MT256x128x64_MI16x16x1"
        kernels = [Dispatch(name, m.start_ns + 1, m.start_ns + 1001, thread=m.thread) for m in markers]
        target = Path(options.output_directory) / (
            options.output_file.replace("%pid%", file.stem) + "_results.db"
        )
        if kernels:
            target.parent.mkdir(parents=True, exist_ok=True)
            write_rocpd(target, kernels, markers, int(file.stem))
        file.unlink()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
