"""The calibration of this machine."""

from latent_moe.lab.cost import hardware


def test_this_machine_can_be_calibrated():
    from latent_moe.lab.microbench.calibrate import calibrate

    found = calibrate("cpu", gemm_size=64, copy_mb=4)
    assert all(value > 0 for value in found.figures().values())
    assert (
        hardware.from_calibration(found.figures(), hardware.get("h200")).peak_bf16_tflops == found.gemm_tflops
    )


def test_figures_of_an_h200_predict_the_recorded_pairs():
    """Synthetic figures of the size an H200 has: with a graph's node the bounds hold, with an eager launch they do not."""
    from latent_moe.lab.cost import answer
    from latent_moe.lab.recordings import profile_path
    from tools.studies.calibration_check import ARMS, BOUNDS_PP

    def errors(launch_us):
        figures = {"copy_tb_per_s": 4.27, "gemm_tflops": 690.0, "launch_us": launch_us}
        machine = hardware.from_calibration(figures, hardware.get("h200"))
        table = str(profile_path("h200x2_vllm"))
        return [
            answer.predict({"table": table, "candidate": arm, "machine": machine})["mae_pp"] for arm in ARMS
        ]

    assert all(found[name] <= bound for found in errors(1.15) for name, bound in BOUNDS_PP.items())
    assert any(found[name] > bound for found in errors(6.5) for name, bound in BOUNDS_PP.items())
