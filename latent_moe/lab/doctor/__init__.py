"""What this machine has and lacks for the tour, each lack with the command that mends it."""

from latent_moe.lab.doctor.checks import Check, examine

__all__ = ["Check", "examine"]
