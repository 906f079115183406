"""The table of kernel names: (pattern, kind, library), tried from top to bottom.

Patterns are regular expressions searched for in the name's plain spelling (`spelling.plain`): one rule reads
`void at::native::reduce_kernel<...>` and `_ZN2at6native13reduce_kernelI...` alike. `~` stands for further parts of a
nested name, inside which nothing of a template's arguments is seen. A pattern that begins with `@` is searched for in
the kernel's own name alone, in front of template and call arguments: words say what a kernel is only there. Two rules may look the same and differ in order only:
what is more special stands above. Names are those that ROCm's, NVIDIA's and PyTorch's libraries, vLLM, aiter and
Triton show in traces.
"""

KINDS = (
    "gemm",
    "collective",
    "moe",
    "attention",
    "norm",
    "elementwise",
    "reduction",
    "copy",
    "other",
    "unknown",
)
LIBRARIES = (
    *("hipblaslt", "rocblas", "tensile", "ck", "aiter", "flydsl", "triton", "cublas", "cutlass", "cudnn"),
    *("rccl", "nccl", "gloo", "vllm", "pytorch", "rocprim", "cub", "rocclr", "cuda", "flash_attn", "unknown"),
)

# Inductor names a kernel after its form (pointwise, reduction, template) and then after every operator fused into it:
# the form says what it is.
INDUCTOR = (
    (
        r"^triton_poi_fused(?:__?(?:to_copy|unsafe_view|clone|cat|copy_?|stack|view|transpose|permute|slice|split|"
        r"unsqueeze|squeeze|expand|select|constant_pad_nd))+_\d+$",
        "copy",
        "triton",
    ),
    (r"^triton_(?:poi|for)_", "elementwise", "triton"),
    (r"^triton_(?:red|per)_\w*(?:rms|layer|group|batch)_norm", "norm", "triton"),
    (r"^triton_(?:red|per|split_scan|spl)_", "reduction", "triton"),
    (r"^triton_tem_\w*(?:attention|flex)", "attention", "triton"),
    (r"^triton_(?:tem|mm|bmm)_", "gemm", "triton"),
)

# Collectives stand first among the others: "reduce" and "gather" in their names mean something else below.
COLLECTIVES = (
    # RCCL keeps NCCL's names; only its generic kernels (numbered by unroll factor) tell the two apart.
    (r"ncclDevKernel(?:Debug)?_Generic_\d|rcclKernel", "collective", "rccl"),
    (r"nccl(?:Dev)?Kernel", "collective", "nccl"),
    (r"mscclKernel|mscclpp", "collective", "rccl"),
    (r"\bgloo:", "collective", "gloo"),
    (r"aiter::~(?:cross_device_reduce|all_?reduce|reduce_scatter|all_?gather)", "collective", "aiter"),
    (
        r"allreduce_fusion_kernel|local_device_load_rmsnorm|cross_device_reduce_\w+?_write_mode",
        "collective",
        "aiter",
    ),
    (r"quickreduce|(?:oneshot|twoshot)_all_?reduce|allreduce_prototype", "collective", "vllm"),
    (r"vllm::~(?:cross_device_reduce|all_?reduce)", "collective", "vllm"),
    (r"multimem_(?:all_?reduce|one_shot|all_?gather)|(?:one|two)_shot_all_reduce", "collective", "pytorch"),
    (
        r"cross_device_reduce_|custom_all_?reduce|userbuffers|nvshmem\w*(?:reduce|gather)",
        "collective",
        "unknown",
    ),
    (r"trtllm_?allreduce", "collective", "unknown"),
    (r"@\bshm_(?:all_?reduce|all_?gather|reduce|gather|send|recv)", "collective", "vllm"),
    (r"@(?:one|two)_?shot\w*all_?reduce|all_?reduce\w*(?:one|two)_?shot", "collective", "unknown"),
    (
        r"@^(?!.*c10d|.*aten::).*(?:all_?reduce|reduce_?scatter|all_?gather|all_?to_?all)(?!.*(?:quant|norm_only))",
        "collective",
        "unknown",
    ),
    (r"_all_?reduce_kernel|_all_?gather_kernel|_reduce_?scatter_kernel", "collective", "triton"),
)

MOE = (
    (r"@topk_?softmax|topk_?gating|biased_?topk", "moe", "aiter"),
    (r"deep_ep::|@\bmori::|[Ee]p(?:_d|D)ispatch|[Ee]p(?:_c|C)ombine", "moe", "unknown"),
    # TensorRT-LLM's batched products with routed activations are the experts'.
    (r"^bmm_\w*(?:[sS]wi[gG]lu|[gG]e[gG]lu|dynBatch|routeAct)", "moe", "unknown"),
    (
        r"fmoe|moe_ck2stages|aiter::~(?:moe|topk_softmax|topk_gating|grouped_topk|biased_grouped)",
        "moe",
        "aiter",
    ),
    (r"flydsl\w*moe|moe\w*flydsl|mfma_moe[12]", "moe", "flydsl"),
    (
        r"ck(?:_tile)?::.*?(?:[Mm]oe|[Ff]usedMoe)|kernel_moe_(?:mxgemm|gemm)|[Mm]oeSorting|MoeFlatmm",
        "moe",
        "ck",
    ),
    (r"vllm::~(?:moe|topkGating|topkGatingSoftmax|grouped_topk)|moe_align_block_size", "moe", "vllm"),
    (r"moe_sum_kernel|count_and_sort_expert_tokens|shuffleInputRows|topkGating", "moe", "vllm"),
    (
        r"fused_moe_kernel|_matmul_ogs|_p_matmul_ogs|_topk_forward|_combined_routing|_sum_bitmatrix",
        "moe",
        "triton",
    ),
    (
        r"_finalize_matmul_scatter|_moe_gemm|moe_gemm_a\w+|_expert_|write_zeros_to_output|_routing_",
        "moe",
        "triton",
    ),
    (
        r"[Mm]ixtureOfExperts|cutlass_kernels::~(?:expandInput|finalizeMoe|doActivation|buildExpert)|cutlass~[Mm]oe|moe::dev::|finalizeMoeRouting",
        "moe",
        "cutlass",
    ),
)

ATTENTION = (
    (
        r"flashinfer::~(?:Batch|Single|Paged|Ragged|Append|Merge|VariableLength|\w*(?:KVCache|Attention|MLA))",
        "attention",
        "unknown",
    ),
    (r"cudnn\w*(?:sdpa|flash|fmha|attention)", "attention", "cudnn"),
    (
        r"aiter::~(?:fmha|mla|pa_|PA_|paged_att|flash|reshape_and_cache|concat_and_cache|rope|rotary)",
        "attention",
        "aiter",
    ),
    (r"ck(?:_tile)?::.*?(?:[Ff]mha|[Aa]ttention)|FmhaFwd|FmhaBwd", "attention", "ck"),
    (
        r"vllm::~(?:paged_attention|reshape_and_cache|concat_and_cache|rotary|merge_attn|cp_gather)",
        "attention",
        "vllm",
    ),
    (r"paged_attention_ll4mi|merge_attn_states|reshape_and_cache", "attention", "vllm"),
    (r"flash::|flash_fwd|flash_bwd|FlashAttn|flash_attn|FlashMLA|mla_decode", "attention", "flash_attn"),
    (
        r"(?:pytorch|cutlass)?_?fmha_cutlass|fmha\w*[Ss]m\d+|AttentionKernel|attention_kernel_batched",
        "attention",
        "cutlass",
    ),
    (
        r"kernel_unified_attention|^_[fb]wd_kernel|_attn_fwd|_attn_bwd|_fwd_grouped_kernel|reduce_segments",
        "attention",
        "triton",
    ),
    (
        r"_decode_att|_mla_|chunk_(?:gated_)?delta|fused_recurrent|(?:^|_)kda_",
        "attention",
        "triton",
    ),
    (r"^(?:void )?(?:attn_fwd|attn_bwd|bwd_kernel_\w+|bwd_preprocess\w*)", "attention", "triton"),
    (
        r"fmha|flash_?att|paged_?att|rotary_embedding|\brope_|aten::\w*scaled_dot_product\w*",
        "attention",
        "unknown",
    ),
)

NORM = (
    (r"cudnn\w*::~(?:bn_|\w*[Nn]orm)|^cudnn_\w*norm|MIOpen\w*Norm|miopen\w*norm", "norm", "cudnn"),
    (r"flashinfer::~(?:norm::|\w*[Nn]orm)", "norm", "unknown"),
    (r"aiter::~(?:[Rr]ms_?[Nn]orm|[Ll]ayer_?[Nn]orm|add_rmsnorm)", "norm", "aiter"),
    (r"ck(?:_tile)?::.*?(?:Rmsnorm|Layernorm|RmsNorm|LayerNorm|[Nn]ormalization)", "norm", "ck"),
    (r"vllm::~(?:rms_norm|layernorm|fused_add_rms)", "norm", "vllm"),
    (
        r"^at::native::~(?:layer_norm|LayerNorm|rms_norm|RmsNorm|RMSNorm|batch_norm|GroupNorm)",
        "norm",
        "pytorch",
    ),
    (
        r"^at::native::~(?:RowwiseMoments|cuCompute(?:FileTrace)?GradGammaBeta|GammaBeta|vectorized_layer)",
        "norm",
        "pytorch",
    ),
    (r"aten::(?:_fused_rms_norm|rms_norm|native_layer_norm|layer_norm)\b", "norm", "pytorch"),
    (
        r"_rms_?norm\w*_kernel|_layer_norm_fwd|fused_rms_\w+|_norm_kernel",
        "norm",
        "triton",
    ),
)

# A convolution's kernels name GEMMs, tiles and tensor ops too; its direction, layout or library tells it.
CONVOLUTION = (
    (r"@cudnn\w*::~\w*[Ss]oftmax|MIOpenSoftmax|SoftmaxForward$", "reduction", "cudnn"),
    (
        r"[fF]prop|[dwDW]grad(?:_|[A-Z\d])|[Ww]grad|[dD]grad|ImplicitGemm(?:Conv|Multistage)|implicit_(?:gemm|convolve)|scudnn",
        "other",
        "cudnn",
    ),
    (r"ck(?:_tile)?::.*?grouped_?conv|kernel_grouped_conv|[Gg]rouped[Cc]onv", "other", "ck"),
    (
        r"@igemm_(?:fwd|bwd|wrw)|[Ww]inograd|im2col|col2im|[Cc]onv(?:olution|olve|Fwd|Bwd|\d|_|$)|Conv_v|N[CH][HCW]{2}2|TensorOp|CNHW",
        "other",
        "cudnn",
    ),
    (r"cudnn|MIOpen|miopen", "other", "cudnn"),
    (r"@\bfft|_fft|vector_fft|regular_fft|dpRadix", "other", "unknown"),
)

# BLAS routines that are no products stand in cublas's and rocblas's files beside those that are.
BLAS = (
    (
        r"@(?:^|[_:])(?:trsm|trmm|trsv|syrk|herk|getr[fs]|potrf|geqrf|larf[tb]?|laswp|xxtrf\d?|create_pivot)",
        "other",
        "unknown",
    ),
    (r"@(?:^|[_:])(?:scal|axpy|swap|rot)_?(?:batched_)?(?:kernel|$)", "elementwise", "unknown"),
    (
        r"@(?:^|[_:])(?:dot[cu]?|asum|nrm2|iama[xn]|i?amax)_?\w*kernel|reduce_1Block_kernel",
        "reduction",
        "unknown",
    ),
)

# The prologue and epilogue kernels of a GEMM (split-K sums, beta) are that GEMM's time.
GEMM = (
    (r"Cijk_\w*?(?:UserArgs|_Bias|_SAV|PostGSU|_HA_)|Cijk_\w*?_LDSB\d_AFC", "gemm", "hipblaslt"),
    (r"Cijk_\w*?(?:_S[EN]_K1|_S[EN]_1LDSB|_APM\d_ABV|MI\d+x\d+x\d+x\d+)", "gemm", "rocblas"),
    (r"Cijk_", "gemm", "tensile"),
    (r"rocblas_?(?:\w*?)(?:gemv|gemm|gemvt|gemvn)", "gemm", "rocblas"),
    (r"hipblaslt|_hipBLASLt|SplitK_PostGSU", "gemm", "hipblaslt"),
    (r"flydsl\w*|hgemm_\w*flydsl", "gemm", "flydsl"),
    (
        r"aiter::~(?:gemm|a8w8|a4w4|f4gemm|flatmm)|(?:bf16|f4|fp8|i8)gemm_\w+|wv_splitk_\w+",
        "gemm",
        "aiter",
    ),
    (
        r"gemm_xdl|[Gg]emm_?[Xx]dl|kernel_gemm|kernel_batched_gemm|ck(?:_tile)?::.*?[Gg]emm|flatmm",
        "gemm",
        "ck",
    ),
    (r"wvSplitK|LLGemm|LLMM1|gptq_gemm|awq_gemm|[Mm]arlin|vllm::~gemm|scaled_mm_kernel", "gemm", "vllm"),
    (
        r"nvjet_|sm\d+_xmma_gemm|cublas|gemv2[TN]_kernel|gemvNSP|gemv_kernel|gemvx|splitKreduce_kernel",
        "gemm",
        "cublas",
    ),
    (r"(?:volta|turing|ampere|hopper|maxwell)_\w*gemm|magma_\w*gemm", "gemm", "cublas"),
    (
        r"cutlass.*?(?:[Gg]emm|tensorop)|cutlass_\d+_\w+|GemmUniversal|deep_gemm",
        "gemm",
        "cutlass",
    ),
    (r"^fused_up_projection", "gemm", "triton"),
    (
        r"_gemm_a\w+|_?matmul_kernel|_gemm_kernel|batched_gemm_\w*kernel|_w8a8_\w*gemm",
        "gemm",
        "triton",
    ),
    (r"mul_mat_(?:vec_)?[qf]\b|mul_mat_", "gemm", "unknown"),
    (
        r"aten::(?:mm|addmm_?|_addmm_activation|bmm|baddbmm_?|mv|addmv_?|dot|_scaled_mm|_int_mm|mkldnn_linear)\b",
        "gemm",
        "pytorch",
    ),
    (r"aten::(?:_grouped_mm|_scaled_grouped_mm)\b", "moe", "pytorch"),
    (r"\bmkldnn::|onednn|brgemm", "gemm", "pytorch"),
)

COPIES = (
    (r"__amd_rocclr_(?:copy|fill|init|stream|batch|gws)\w*", "copy", "rocclr"),
    (r"^Mem(?:cpy|set)|MEMORY_COPY|CopyHostTo|CopyDeviceTo|hipMemcpy|cudaMemcpy", "copy", "cuda"),
    (r"^at::native::~(?:CatArrayBatchedCopy|index_copy|FillFunctor)", "copy", "pytorch"),
    (
        r"(?:direct|bfloat16|float8|bfloat16tofloat32|float16|half)\w*_copy_kernel|FillFunctor|LoadWithCast\w*Copy",
        "copy",
        "pytorch",
    ),
    (r"aten::(?:copy_|fill_|zero_|cat|clone|_to_copy|_cat|index_copy_?)$", "copy", "pytorch"),
    (r"concat_cont|cpy_f|k_cpy", "copy", "unknown"),
)

REDUCTIONS = (
    (
        r"^at::native::~(?:reduce_kernel|softmax|SoftMax|cunn_Soft|sum_and_scatter|lpnorm_cleanup|LpNormFunctor|tensor_kernel_scan|argmax|topk|gatherTopK|mbtopk|radixFindKth)",
        "reduction",
        "pytorch",
    ),
    (r"multi_tensor_apply_kernel(?:.*?)LpNormFunctor", "reduction", "pytorch"),
    (
        r"aten::(?:sum|mean|amax|amin|max|min|argmax|topk|_softmax|softmax|_log_softmax|cumsum|norm|linalg_vector_norm|var|std|all|any)$",
        "reduction",
        "pytorch",
    ),
    (r"@(?:rocprim|hipcub|cub)::\S*[Rr]educe(?!ByKey|_by_key)", "reduction", "rocprim"),
)

ELEMENTWISE = (
    (r"vllm::~(?:act_and_mul|silu|gelu|swigluoai|scaled_\w*quant|quant|convert_fp8)", "elementwise", "vllm"),
    (r"aiter::~(?:act_and_mul|scaled_act|silu|quant|smooth|add_|mul_|binary)", "elementwise", "aiter"),
    (r"(?<!index_)elementwise_kernel", "elementwise", "pytorch"),
    (
        r"multi_tensor_apply_kernel|fused_dropout_kernel|masked_scale_kernel|CUDAFunctor|distribution_elementwise",
        "elementwise",
        "pytorch",
    ),
    (r"act_and_mul_kernel|silu_and_mul|situ_and_mul|_swiglu\w*", "elementwise", "unknown"),
    (
        r"aten::(?:add|sub|mul|div|pow|sqrt|rsqrt|tanh|sigmoid|silu|gelu|relu|exp|log|neg|abs|clamp|where|addcmul|lerp|maximum|minimum|reciprocal|square|masked_fill|normal|uniform|bernoulli|eq|ne|lt|gt|le|ge|floor|round|logical_not|bitwise_and|sin|cos)_?$",
        "elementwise",
        "pytorch",
    ),
    (r"ck(?:_tile)?::.*?[Ee]lementwise", "elementwise", "ck"),
    (r"unary_(?:gated_)?op_kernel|k_bin_bcast|scale_f32|quantize_q8", "elementwise", "unknown"),
)

# What a word of the kernel's own name says, when no library's spelling was found above.
WORDS = (
    (r"@moe|MoE|Moe|_expert|(?:^|_)(?:un)?permute_kernel|(?:^|_)experts?_", "moe", "unknown"),
    (
        r"@[Ff]mha|[Ff]lash_?[Aa]tt|[Pp]aged_?[Aa]tt|[Rr]otary|(?:^|[_:])rope(?:_|$)|[Rr]oPE|gated_delta|delta_rule|scaled_dot_product",
        "attention",
        "unknown",
    ),
    (
        r"@[Aa]ttention|(?:^|[_:])attn|_attn(?:_|$)|Attn|kv_?cache|KVCache|KvCache|indexer|(?:^|[_:])mla_|_mla_|(?:^|_)nsa_|"
        r"_sparse_fwd|_k_and_s_|sage_",
        "attention",
        "unknown",
    ),
    (
        r"@(?i:(?:rms|layer|group|batch|instance|l2|qk)_?norm)|cuCompute(?:Part)?Grad|cuApplyLayerNorm|GammaBeta|"
        r"(?:^|[_:])norm(?:aliz\w*)?_?(?:fwd|bwd|kernel)",
        "norm",
        "unknown",
    ),
    (
        r"@(?:^|[_:])[hsdczi]?(?:gc)?gemm(?:k1|SN|_|[A-Z\d]|$)|[Gg]emv|[Mm]at_?[Mm]ul(?:_|[A-Z]|$)|matrix_multiplication|mul_mat|_mmq|"
        r"(?:^|_)bmm_|[Ss]plit_?[Kk]_?[Rr]educe",
        "gemm",
        "unknown",
    ),
    (r"@[Qq]uant|[Ff][Pp]8row|qparam|(?:to|from)_fp[48]", "elementwise", "unknown"),
    (
        r"@page_ind|token_id|position|[Ii]nd(?:ex|ic|ptr)|(?<!selective_)scan(?:_|[A-Z]|$)|[Ss]ort|[Hh]istogram|[Ee]mbed|pooled_embs|"
        r"permute_\dD|partition|[Gg]ather|[Uu]nique|nonzero|bounds_check|linearize|to_dense|segment|onesweep|"
        r"lookback|[gs]et_rows|arange|compute_grad_weight|[Ss]ampl|[Pp]hilox|bincount|slot_mapping|block_table",
        "other",
        "unknown",
    ),
    (
        r"@[Ss]oft_?[Mm]ax|lpnorm|sum_and_scatter|arg_?m(?:ax|in)|[Tt]op_?[Kk]|logsumexp|cross_entropy|(?:^|_)reduc(?:e|tion)_kernel",
        "reduction",
        "unknown",
    ),
    (
        r"@(?:^|_)(?:memcpy|memset|copy|fill|cat|concat|transpose|pad)_?(?:\w*_)?(?:async_)?(?:kernel|\d|$)|[Tt]ranspose",
        "copy",
        "unknown",
    ),
    (
        r"@silu|gelu|swiglu|(?:^|_)relu|[Dd]ropout|amp_(?:update|foreach|non_finite)|elementwise|pointwise",
        "elementwise",
        "unknown",
    ),
)

# Known, and none of the kinds above: indexing, sorting, random numbers, host views.
OTHER = (
    (
        r"^at::native::~(?:gather|scatter|index|embedding|compute_grad_weight|krn_partial|compute_num_of_partial|arange|sort|triu|tril|nonzero|upsample|conv)",
        "other",
        "pytorch",
    ),
    (r"rocprim::", "other", "rocprim"),
    (r"\bcub::|DeviceRadixSort|DeviceScan", "other", "cub"),
    (r"\bcudnn|miopen", "other", "cudnn"),
    (r"vllm::", "other", "vllm"),
    (r"aiter::", "other", "aiter"),
    (r"aten::|c10d::", "other", "pytorch"),
    (r"k_get_rows|ssm_conv", "other", "unknown"),
)

# A library's namespace without a kernel that any rule knows: the library is certain, the kind is not.
NAMESPACES = (
    (r"at::native::|at::cuda::|c10::", "unknown", "pytorch"),
    (r"ck_tile::|\bck::", "unknown", "ck"),
    (r"cutlass", "unknown", "cutlass"),
    (r"^triton_", "unknown", "triton"),
    (r"rocblas_", "unknown", "rocblas"),
)

RULES = (
    *INDUCTOR,
    *COLLECTIVES,
    *GEMM[:3],
    *MOE,
    *ATTENTION,
    *NORM,
    *CONVOLUTION,
    *BLAS,
    *GEMM[3:],
    *COPIES,
    *REDUCTIONS,
    *ELEMENTWISE,
    *WORDS,
    *OTHER,
    *NAMESPACES,
)
