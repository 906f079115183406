"""What notebooks 01 and 02 run: a tail step by step on real ranks, each refusal once, times of a layer's parts."""

from latent_moe.lab.notebooks.walkthrough_parts import accumulate_times, part_times
from latent_moe.lab.notebooks.walkthrough_refusals import refusals
from latent_moe.lab.notebooks.walkthrough_steps import Walk, walk

__all__ = ["Walk", "accumulate_times", "part_times", "refusals", "walk"]
