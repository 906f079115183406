"""Result files of all kinds into runs, accuracies and greedy answers; see `read_results`."""

from latent_moe.lab.results.files import NotAResult, Results, read_file, read_text
from latent_moe.lab.results.folders import read_results
from latent_moe.lab.results.lm_eval import Accuracy
from latent_moe.lab.results.run import METRICS, PRIMARY, Metric, Run, Warning

__all__ = [
    "METRICS",
    "PRIMARY",
    "Accuracy",
    "Metric",
    "NotAResult",
    "Results",
    "Run",
    "Warning",
    "read_file",
    "read_results",
    "read_text",
]
