"""What the tail of a latent MoE layer should cost: from vendor figures, published kernels and recordings.

Read in this order: hardware, terms, gemm, tail, then predict (the end-to-end change of a throughput table), answer
(what the verb is asked and says), table_facts (what a table says about itself), tail_timings and savings (recordings
of tails), auto_tail (the automatic choice).
"""
