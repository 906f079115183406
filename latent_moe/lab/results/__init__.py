"""Result files of all kinds into runs, accuracies and greedy answers; see `read_results`."""

from latent_moe.lab.results.accuracy import Accuracy
from latent_moe.lab.results.read import NotAResult, Results, read_file, read_results, read_text
from latent_moe.lab.results.run import METRICS, PRIMARY, Metric, Note, Run

__all__ = [
    "METRICS",
    "PRIMARY",
    "Accuracy",
    "Metric",
    "NotAResult",
    "Note",
    "Results",
    "Run",
    "read_file",
    "read_results",
    "read_text",
]
