"""Triton kernels of the fused tail; nothing here imports Triton before it is used."""

from latent_moe.fused_kernel.launch import DTYPES, interpreted, norm_project_accumulate, why_not

__all__ = ["DTYPES", "interpreted", "norm_project_accumulate", "why_not"]
