"""Figures, one function each, from tables and plain dicts; plotly, imported only here."""
