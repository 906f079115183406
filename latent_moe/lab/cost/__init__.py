"""What the tail of a latent MoE layer should cost: from vendor figures, published kernels and recordings.

Standard library only. Read in this order: constants, hardware, gemm, collectives, tail, then waves and predict
(the end-to-end change of a throughput table), table and table_facts (what a table says about itself), recordings
and fit (the same model fitted to measured tails).
"""
