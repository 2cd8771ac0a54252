"""The process that stands ready for starts of queries: it ends with the one that started it, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

STARTS = """
import os, sys
from watersmeet.spark.private.spare import PIPE, PROCESS, start_spare
start_spare(os.environ)
start_spare(os.environ)
print(os.environ[PIPE], os.environ[PROCESS], flush=True)
sys.stdin.read()
"""


def is_gone(pid: int, folder: Path) -> bool:
    for _ in range(600):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return not folder.exists()
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_the_process_that_started_it(end: signal.Signals) -> None:
    process = subprocess.Popen([sys.executable, "-c", STARTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pipe, pid = process.stdout.readline().split()
    assert Path(pipe).is_fifo()
    assert Path(pipe).parent.stat().st_mode & 0o077 == 0, "the pipe carries a secret"
    process.send_signal(end)
    process.communicate()
    assert is_gone(int(pid), Path(pipe).parent)
