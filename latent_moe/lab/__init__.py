"""The instruments: traces, benchmarks, results, cost, and what shows them. The core imports nothing from here."""
