"""What a person reads when a script cannot be read: `golden/<name>.sql` and beside it `<name>.txt`."""

from __future__ import annotations

from pathlib import Path

import pytest

from watersmeet.errors import WatersmeetError
from watersmeet.queries import read_script

GOLDEN = Path(__file__).parent / "golden"
NAMES = sorted(path.stem for path in GOLDEN.glob("*.sql"))


@pytest.mark.parametrize("name", NAMES)
def test_the_refusals_of_a_script(name: str):
    script = (GOLDEN / f"{name}.sql").read_text("utf-8")
    with pytest.raises(WatersmeetError) as error:
        read_script(script, f"{name}.sql")
    assert f"{error.value}\n" == (GOLDEN / f"{name}.txt").read_text("utf-8")


def test_goldens_exist():
    assert len(NAMES) >= 8
