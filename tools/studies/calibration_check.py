"""Calibrate this GPU and predict the recorded pairs on two H200 with it: does `--hardware here` hold its bounds?

    python -m tools.studies.calibration_check

Takes about ten seconds on one H200 (any other device is calibrated too, but then the bounds are not claimed). Exit 1
where a bound is missed. Nothing is fitted: the calibration sees copies, GEMMs and launches of this machine alone.
"""

import json
import sys

from latent_moe.errors import InputError
from latent_moe.lab.cost import answer, hardware
from latent_moe.lab.microbench.calibrate import calibrate
from latent_moe.lab.recordings import profile_path

BOUNDS_PP = {"total_tok_per_s": 0.5, "mean_ttft_ms": 2.1, "mean_tpot_ms": 0.9}
ARMS = ("column_parallel", "auto")


def main() -> int:
    """Print the calibration, the errors of both arms and whether each bound is kept, as JSON."""
    found = calibrate()
    machine = hardware.from_calibration(found.figures(), hardware.get("h200"))
    table = str(profile_path("h200x2_vllm"))
    errors = {
        arm: answer.predict({"table": table, "candidate": arm, "machine": machine})["mae_pp"] for arm in ARMS
    }
    kept = {arm: {name: errors[arm][name] <= bound for name, bound in BOUNDS_PP.items()} for arm in ARMS}
    print(
        json.dumps(
            {"calibration": vars(found), "mae_pp": errors, "kept": kept, "bounds_pp": BOUNDS_PP}, indent=1
        )
    )
    claimed = "H200" in found.device
    return 1 if claimed and not all(value for arm in kept.values() for value in arm.values()) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as error:
        sys.exit(f"this machine cannot stand in for an H200: {error}")
