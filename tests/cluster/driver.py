"""``watersmeet`` with leases that expire after seconds: ``python -m tests.cluster.driver ARGUMENT...``."""

from __future__ import annotations

from watersmeet.spark import leases


def main() -> None:
    """Run the command."""
    from watersmeet.cli import main as command

    leases.BEAT, leases.TTL, leases.WATCHED = 1.0, 6.0, 2.5
    command()


if __name__ == "__main__":
    main()
