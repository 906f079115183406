"""``python -m latent_moe`` is the command ``latent-moe``."""

import sys

from latent_moe.cli import main

if __name__ == "__main__":
    sys.exit(main())
