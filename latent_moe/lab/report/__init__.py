"""The tour: the notebooks run headless on this machine, and a report put together that needs no network."""

from latent_moe.lab.report.tour_run import Tour, run_tour

__all__ = ["Tour", "run_tour"]
