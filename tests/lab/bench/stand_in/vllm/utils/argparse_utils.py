"""The client's parser class."""

from argparse import ArgumentParser as FlexibleArgumentParser  # noqa: F401
