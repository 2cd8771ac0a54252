"""The command ``watersmeet``."""

from __future__ import annotations


def main() -> None:
    """Run the command with the arguments of this process."""
    from watersmeet.cli.app import app

    app()
