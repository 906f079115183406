"""One recording as one self-contained HTML page: `write` makes it, `data` says what it holds."""
