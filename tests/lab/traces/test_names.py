"""Kernel names: kinds, libraries, spellings, and what a GEMM's name says."""

import csv
import sqlite3
import subprocess
import sys

import pytest

from latent_moe.lab.traces import kernel_names

REDUCE = "at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float> > >(float)"
HIPBLASLT = (
    "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x128x64_MI16x16x1_SN_LDSB1_AFC1_GSU0_SK3_ISA950_IU1"
)

KNOWN = [
    (HIPBLASLT, "gemm", "hipblaslt"),
    ("Cijk_Ailk_Bljk_SB_MT64x64x8_SE_K1", "gemm", "rocblas"),
    ("Cijk_Alik_Bljk_BBS_BH_MT256x256x64_MI16x16x1", "gemm", "tensile"),
    ("Cijk_Al", "gemm", "tensile"),
    ("rocblas_gemvt_warp_reduce_kernel", "gemm", "rocblas"),
    ("void rocblas_gemvn_kernel<64, 16, long>(float)", "gemm", "rocblas"),
    ("void ck::kernel_gemm_xdl_cshuffle_v3<ck::GridwiseGemm>(ck::Arg)", "gemm", "ck"),
    ("_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Rmsnorm2dFwdPipelineOnePass", "norm", "ck"),
    ("void ck_tile::kentry<1, ck_tile::FmhaFwdKernel<ck_tile::BlockFmha> >()", "attention", "ck"),
    ("void aiter::fmoe_fp8_blockscale_g1u1(void*)", "moe", "aiter"),
    ("_ZN5aiter49fmoe_bf16_blockscaleFp8_g1u1_vs_silu_1tg_ps_32x256E.kd", "moe", "aiter"),
    ("_ZN5aiter38bf16gemm_fp32bf16_tn_64x64_pf3_splitkE", "gemm", "aiter"),
    ("flydsl_gemm_bf16_64x64x64", "gemm", "flydsl"),
    ("void wvSplitK_hf_sml_<__hip_bfloat16, 64, 2>(int)", "gemm", "vllm"),
    ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT", "gemm", "cublas"),
    ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1", "gemm", "cublas"),
    ("void cublasLt::splitKreduce_kernel<32, 16>(int)", "gemm", "cublas"),
    ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu>()", "gemm", "cutlass"),
    ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", "collective", "rccl"),
    ("_Z23ncclDevKernel_Generic_124ncclDevKernelArgsStorageILm4096EE.kd", "collective", "rccl"),
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "collective", "nccl"),
    ("void vllm::cross_device_reduce_1stage<__hip_bfloat16, 8>(vllm::RankData*)", "collective", "vllm"),
    ("void aiter::cross_device_reduce_2stage<__hip_bfloat16, 8>(aiter::RankData*)", "collective", "aiter"),
    ("void aiter::allreduce_fusion_kernel_1stage<__hip_bfloat16>()", "collective", "aiter"),
    ("void cross_device_reduce_2stage<half, 4>()", "collective", "unknown"),
    ("gloo:all_reduce", "collective", "gloo"),
    ("fused_moe_kernel", "moe", "triton"),
    ("fused_up_projection", "gemm", "triton"),
    ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu", "moe", "triton"),
    ("triton_poi_fused_add_3", "elementwise", "triton"),
    ("triton_red_fused_mean_1", "reduction", "triton"),
    ("triton_red_fused__to_copy_rms_norm_2", "norm", "triton"),
    ("attn_fwd.kd", "attention", "triton"),
    ("void vllm::rms_norm_kernel<c10::BFloat16>(int)", "norm", "vllm"),
    ("void vllm::act_and_mul_kernel<c10::BFloat16>(int)", "elementwise", "vllm"),
    (f"void {REDUCE}", "reduction", "pytorch"),
    (
        "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BF",
        "elementwise",
        "pytorch",
    ),
    (
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >(int)",
        "copy",
        "pytorch",
    ),
    ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<int>(int)", "copy", "pytorch"),
    ("__amd_rocclr_copyBuffer.kd", "copy", "rocclr"),
    ("aten::addmm_", "gemm", "pytorch"),
    ("aten::_fused_rms_norm", "norm", "pytorch"),
    ("aten::add_", "elementwise", "pytorch"),
    ("aten::as_strided", "other", "pytorch"),
    ("aten::einsum", "other", "pytorch"),
    ("void at::native::some_new_idea<float>(float)", "unknown", "pytorch"),
    ("divide_kernel(float*, float const*, int)", "unknown", "unknown"),
    ("", "unknown", "unknown"),
]


@pytest.mark.parametrize(("name", "kind", "library"), KNOWN, ids=[name[:40] for name, _, _ in KNOWN])
def test_known_names(name, kind, library):
    assert kernel_names.classify([name]) == ([kind], [library])


def test_every_rule_keeps_to_the_one_label_set():
    assert {kind for _, kind, _ in kernel_names.RULES} <= set(kernel_names.KINDS)
    assert {library for _, _, library in kernel_names.RULES} <= set(kernel_names.LIBRARIES)


def test_every_rule_can_win_and_is_written_once():
    patterns = [pattern for pattern, _, _ in kernel_names.RULES]
    assert len(patterns) == len(set(patterns))


@pytest.mark.parametrize(
    ("full", "mangled"),
    [
        (
            f"void {REDUCE}",
            "_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIfNS0_7MeanOpsIffffEEjfLi4EEE.kd",
        ),
        (
            "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>(int) [clone .kd]",
            "_ZN2at6native12_GLOBAL__N_128vectorized_layer_norm_kernelIffLb0EEEviT0_PKT_",
        ),
        (
            "void at::native::vectorized_gather_kernel<16, long>(char*)",
            "_ZN2at6native24vectorized_gather_kernelILi16ElEEvPcS2_PT0_illllb.kd",
        ),
    ],
)
def test_mangled_and_plain_spellings_agree(full, mangled):
    assert kernel_names.classify([full]) == kernel_names.classify([mangled])
    assert kernel_names.shorten(full) == kernel_names.shorten(mangled)


def test_a_name_cut_anywhere_after_its_telling_part_keeps_its_kind():
    name = f"void {REDUCE}"
    whole = kernel_names.classify([name])
    for cut in range(len("void at::native::reduce_kernel"), len(name)):
        assert kernel_names.classify([name[:cut]]) == whole
        assert kernel_names.classify([name[:cut] + "..."]) == whole


def test_arguments_do_not_change_what_a_kernel_is():
    """`index` and `softmax` in a lambda's name inside the template arguments say nothing about the kernel."""
    name = "void at::native::elementwise_kernel<512, 1, at::native::index_put_softmax_impl(int)::{lambda()#1}>(int)"
    assert kernel_names.classify([name]).kind == ["elementwise"]


def test_the_generic_collective_claims_no_type():
    assert kernel_names.collective_type("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)") is None
    assert kernel_names.collective_type("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(int)") == "all_reduce"
    assert (
        kernel_names.collective_type("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(int)") == "reduce_scatter"
    )
    assert kernel_names.collective_type("gloo:all_gather") == "all_gather"
    assert kernel_names.collective_type("void vllm::cross_device_reduce_1stage<half, 8>()") == "all_reduce"
    assert kernel_names.collective_type("aten::mm") is None


def test_hipblaslt_name_taken_apart():
    gemm = kernel_names.decode_gemm(HIPBLASLT + ".kd")
    assert (gemm.library, gemm.tile, gemm.transposes) == ("hipblaslt", (256, 128, 64), "TN")
    assert (gemm.dtype_a, gemm.dtype_b, gemm.dtype_out, gemm.dtype_compute) == ("bf16", "bf16", "bf16", "f32")
    assert gemm.bias is True
    assert gemm.accumulates is True
    assert gemm.high_precision is True
    assert gemm.activation is True
    assert (gemm.matrix_instruction, gemm.split_k, gemm.stream_k, gemm.isa) == ("16x16x1", 0, True, "gfx950")


@pytest.mark.parametrize(
    ("types", "a", "b", "out", "compute"),
    [
        ("BBS_BH", "bf16", "bf16", "bf16", "f32"),
        ("B_BS_BH", "bf16", "bf16", "bf16", "f32"),
        ("HHS_BH", "f16", "f16", "f16", "f32"),
        ("S_B", "f32", "f32", "f32", "f32"),
        ("SB", "f32", "f32", "f32", "f32"),
        ("HBH", "f16", "f16", "f16", "f32"),
        ("DB", "f64", "f64", "f64", "f64"),
        ("F8BS_BH", "f8_e4m3", "f8_e4m3", "bf16", "f32"),
        ("F8NB8NBS_BH", "f8_e4m3fnuz", "f8_e5m2fnuz", "bf16", "f32"),
    ],
)
def test_tensile_data_types(types, a, b, out, compute):
    gemm = kernel_names.decode_gemm(f"Cijk_Ailk_Bjlk_{types}_MT64x32x16_SE")
    assert (gemm.dtype_a, gemm.dtype_b, gemm.dtype_out, gemm.dtype_compute) == (a, b, out, compute)
    assert gemm.transposes == "NT"
    assert gemm.bias is False
    assert gemm.accumulates is True


def test_what_a_cut_name_does_not_state_is_missing():
    gemm = kernel_names.decode_gemm("Cijk_Alik_Bljk_BBS_BH_Bi")
    assert gemm.tile is None
    assert gemm.bias is None
    assert gemm.isa is None
    assert gemm.transposes == "TN"


def test_tiles_of_other_libraries():
    assert kernel_names.decode_gemm("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT").tile == (128, 256, 64)
    xmma = kernel_names.decode_gemm(
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1"
    )
    assert (xmma.tile, xmma.transposes) == ((128, 128, 64), "TN")
    assert kernel_names.decode_gemm("_ZN5aiter38bf16gemm_fp32bf16_tn_64x96_pf3_splitkE").tile == (
        64,
        96,
        None,
    )
    assert kernel_names.decode_gemm("ncclDevKernel_Generic_1") is None


def test_real_names_read_alike_mangled_and_demangled(shared):
    """The rocpd recording keeps both spellings of its 80 kernels; a third of them is cut short."""
    with sqlite3.connect(f"file:{shared}/traces/mi350x_rocpd_small.db?mode=ro", uri=True) as db:
        rows = db.execute("SELECT display_name, kernel_name FROM rocpd_info_kernel_symbol").fetchall()
    assert len(rows) == 80
    plain, mangled = zip(*rows, strict=True)
    assert kernel_names.classify(plain) == kernel_names.classify(mangled)
    assert "unknown" not in kernel_names.classify(plain).kind


def test_importing_names_is_cheap():
    code = "import sys, latent_moe.lab.traces.kernel_names; print([m for m in ('numpy', 'torch', 'pandas') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def score(path):
    """(share right, share wrong, names that are neither) of a CSV of kinds and names; "a|b" takes either kind."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    kinds = kernel_names.classify([row["name"] for row in rows]).kind
    right = [kind in row["kind"].split("|") for kind, row in zip(kinds, rows, strict=True)]
    wrong = [not good and kind != "unknown" for good, kind in zip(right, kinds, strict=True)]
    missed = [row["name"] for row, good in zip(rows, right, strict=True) if not good]
    return sum(right) / len(rows), sum(wrong) / len(rows), missed


def test_own_list_of_names(fixtures):
    assert score(fixtures / "traces" / "kernel_names_own.csv")[2] == []


def test_score_on_a_large_list_of_names(shared):
    path = shared / "facts" / "kernel_names.csv"
    if not path.exists():
        pytest.skip("no large list of kernel names here")
    right, wrong, missed = score(path)
    assert right >= 0.97, missed[:10]
    assert wrong <= 0.01, missed[:10]


@pytest.mark.parametrize("decoration", [".kd", " [clone .kd]", " (.kd)", " [clone .constprop.0] [clone .kd]"])
def test_decorations_change_nothing(fixtures, decoration):
    with (fixtures / "traces" / "kernel_names_own.csv").open(newline="") as file:
        names = [row["name"].removesuffix(".kd") for row in csv.DictReader(file)]
    decorated = [name + decoration for name in names]
    assert kernel_names.classify(names) == kernel_names.classify(decorated)
    assert list(map(kernel_names.shorten, names)) == list(map(kernel_names.shorten, decorated))


def test_score_on_a_large_list_of_gemm_names(shared):
    path = shared / "facts" / "gemm_names.csv"
    if not path.exists():
        pytest.skip("no large list of GEMM names here")
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    missed = [row["name"] for row in rows if not _says(row)]
    assert len(missed) <= 0.02 * len(rows), missed


def _says(row):
    """Does the decoder say what the row states? "?" and an empty cell state nothing."""
    gemm = kernel_names.decode_gemm(row["name"])
    if gemm is None:
        return False
    m, n, k = gemm.tile or (None, None, None)
    told = {
        "tile_m": m,
        "tile_n": n,
        "tile_k": k,
        **{name: getattr(gemm, name) for name in row if "ty" in name},
    }
    told["transposes"] = gemm.transposes
    return all(
        str(told[name]) == value for name, value in row.items() if name in told and value not in ("", "?")
    )


@pytest.mark.parametrize(
    ("name", "tile", "transposes"),
    [
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x64_16x6_tn_align4>()", (128, 64, 16), "TN"),
        ("volta_sgemm_128x32_sliced1x4_tn", (128, 32, None), "TN"),
        ("ampere_fp16_s16816gemm_fp16_64x64_ldg8_f2f_stages_64x6_nn", (64, 64, 64), "NN"),
        (
            "cutlass3x_sm100_tensorop_s128x256x16gemm_bf16_bf16_f32_void_bf16_128x256x64_2x1x1_0_tnn_align8_1sm",
            (128, 256, 64),
            "TN",
        ),
        (
            "_gemm_a16w16_kernel_BLOCK_SIZE_M_64_BLOCK_SIZE_N_128_BLOCK_SIZE_K_32_GROUP_SIZE_M_4",
            (64, 128, 32),
            None,
        ),
        ("bmm_Bfloat16_E2m1E2m1_Fp32_t128x8x512u2_s4_et128x8_m128x8x64_rM_TN_sm100f", (128, 8, 512), "TN"),
    ],
)
def test_tiles_as_each_library_writes_them(name, tile, transposes):
    gemm = kernel_names.decode_gemm(name)
    assert (gemm.tile, gemm.transposes) == (tile, transposes)


@pytest.mark.parametrize(
    ("types", "a", "b", "out"),
    [
        ("B8F8NBS_BH", "f8_e5m2fnuz", "f8_e4m3fnuz", "bf16"),
        ("F8H_HHS_BH", "f8_e4m3", "f16", "f16"),
        ("F4BS_BH", "f4", "f4", "bf16"),
    ],
)
def test_mixed_and_narrow_types(types, a, b, out):
    gemm = kernel_names.decode_gemm(f"Cijk_Alik_Bljk_{types}_Bias_MT64x32x16_SE")
    assert (gemm.dtype_a, gemm.dtype_b, gemm.dtype_out) == (a, b, out)
