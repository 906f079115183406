"""Recording: what is profiled, by which profiler, and how long tails take here."""
