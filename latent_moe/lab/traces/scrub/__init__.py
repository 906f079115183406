"""Copies of recordings that can be given away: without host names, user names, command lines and environments."""

from latent_moe.lab.traces.scrub.copy import Scrubbed, scrub

__all__ = ["Scrubbed", "scrub"]
