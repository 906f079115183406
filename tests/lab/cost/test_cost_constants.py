"""Constants and machines: provenance is complete, nonsense is refused."""

import pytest

from latent_moe.errors import InputError
from latent_moe.lab.cost import hardware


def test_every_constant_has_a_source_and_a_known_kind():
    rows = hardware.built_in_constants()
    assert len(rows) > 80
    assert all(row.source.strip() and row.kind in hardware.CONSTANT_KINDS for row in rows.values())


def test_published_and_vendor_figures_carry_the_pull_requests_machine():
    figures = [row for name, row in hardware.built_in_constants().items() if name.startswith("mi355x.")]
    used = {row.name for row in figures if row.kind == "assumed"}
    # Only the collectives are assumed, and they are alike in both arms of the change.
    assert used == {"mi355x.collective_latency_us", "mi355x.collective_efficiency"}


def test_the_issue_s_machines_are_known():
    assert hardware.known() == [
        "b200",
        "b300",
        "gb300",
        "h100",
        "h200",
        "mi300x",
        "mi325x",
        "mi350x",
        "mi355x",
    ]
    assert hardware.get("MI355X").hbm_tb_per_s == 8.0
    assert hardware.get("h200").peak_bf16_tflops == 989


def test_unknown_hardware_names_the_known_ones():
    with pytest.raises(InputError, match="mi300x, mi325x, mi350x, mi355x"):
        hardware.get("mi999")


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("x.y,1,furlong,vendor,s", "unknown unit 'furlong'"),
        ("x.y,1,us,rumour,s", "unknown kind 'rumour'"),
        ("x.y,many,us,vendor,s", "not a number"),
        ("x.y,nan,us,vendor,s", "not a number"),
        ("x.y,-1,us,vendor,s", "not a number"),
        ("x.y,1,us,vendor,", "a source"),
        ("x.y,1,us,vendor,s\nx.y,2,us,vendor,s", "twice"),
    ],
)
def test_a_bad_constant_is_refused_with_its_place(tmp_path, row, fault):
    file = tmp_path / "c.csv"
    file.write_text(f"name,value,unit,kind,source\n{row}\n")
    with pytest.raises(InputError, match=fault):
        hardware.load_constants(file)


def test_a_machine_with_a_figure_missing_is_refused(tmp_path):
    file = tmp_path / "c.csv"
    lines = hardware.CONSTANTS.read_text().splitlines()
    file.write_text("\n".join(line for line in lines if not line.startswith("h200.llc_mb,")))
    with pytest.raises(InputError, match="lack llc_mb"):
        hardware.get("h200", hardware.load_constants(file))


def test_a_calibration_replaces_the_figures_and_says_measured():
    here = hardware.from_calibration(
        {"copy_tb_per_s": 0.02, "gemm_tflops": 0.3, "launch_us": 5.0}, hardware.get("h200")
    )
    assert here.stream_us(0.02e6) == pytest.approx(1.0)
    assert (here.kernel_us, here.kinds["kernel_us"]) == (5.0, "measured")
    assert here.kinds["link_gb_per_s"] == "assumed"
    with pytest.raises(InputError, match="launch_us"):
        hardware.from_calibration({"copy_tb_per_s": 1, "gemm_tflops": 1}, hardware.get("h200"))
