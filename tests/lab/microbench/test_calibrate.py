"""The calibration of this machine."""

from latent_moe.lab.cost import hardware


def test_this_machine_can_be_calibrated():
    from latent_moe.lab.microbench.calibrate import calibrate

    found = calibrate("cpu", gemm_size=64, copy_mb=4)
    assert all(value > 0 for value in found.figures().values())
    assert (
        hardware.from_calibration(found.figures(), hardware.get("h200")).peak_bf16_tflops == found.gemm_tflops
    )
