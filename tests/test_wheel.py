"""The wheel: built, looked into, and tried in an environment that has what it declares and nothing else, nor Java."""

from __future__ import annotations

import email
import hashlib
import os
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from watersmeet.version import __version__

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "watersmeet"
MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built without an environment of its own, so that nothing is fetched."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=60)
    return next(folder.glob("*.whl"))


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    files = [path for path in SOURCE.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == {f"watersmeet/{path.relative_to(SOURCE).as_posix()}" for path in files}
    # what the documents, the types, the pages and the commands need besides Python
    folders = (
        "tools/studio/page/files/page.html",
        "tools/studio/board/static/index.html",
        "tools/studio/board/stories/sync.yaml",
        "cli/templates/starter/watersmeet.yml",
    )
    assert {f"watersmeet/{name}" for name in ("py.typed", "errors.toml", "functions.txt", *folders)} <= packed
    assert wheel.stat().st_size < 2 * MEGABYTE


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        about = f"watersmeet-{__version__}.dist-info"
        said = email.message_from_bytes(archive.read(f"{about}/METADATA"))
        licences = {name for name in archive.namelist() if name.startswith(f"{about}/licenses/")}
    assert said["Version"] == __version__
    assert said["Requires-Python"] == ">=3.11"
    assert "Typing :: Typed" in said.get_all("Classifier", [])
    vendored = {path.name for path in (SOURCE / "tools" / "studio" / "assets").glob("LICENSE.*")}
    assert len(vendored) >= 3
    assert {Path(name).name for name in licences} == {"LICENSE", *vendored}
    # each of these has its licence named in the table beside them
    table = (SOURCE / "tools" / "studio" / "assets" / "README.md").read_text("utf-8")
    assert vendored == set(re.findall(r"`(LICENSE\.\w+)`", table))
    named = set(re.findall(r"\b(MIT|Apache-2\.0|BSD-\d-Clause|ISC)\b", table))
    assert named == set(said["License-Expression"].split(" AND "))


@pytest.mark.parametrize("folder", [SOURCE / "tools" / "studio" / "assets", ROOT / "docs" / "assets"], ids=str)
def test_files_of_others_are_those_of_their_packages(folder: Path) -> None:
    table = (folder / "README.md").read_text("utf-8")
    digests = {name: digest for digest, name in re.findall(r"^([0-9a-f]{64})  (\S+)$", table, re.MULTILINE)}
    vendored = {
        name for row in re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE) for name in re.findall("`(.+?)`", row)
    }
    assert vendored and digests.keys() == vendored
    for name, digest in digests.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name


class Clean:
    """An environment with the wheel in it and, by links, the packages that it asks for."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder = folder
        venv.create(folder / "venv", symlinks=True)
        self.bin = folder / "venv" / "bin"
        self.packages = next((folder / "venv" / "lib").glob("python*/site-packages"))
        install = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(self.bin / "python"),
            "install",
            "--no-deps",
            "--no-index",
        ]
        subprocess.run([*install, "--quiet", "--no-compile", str(wheel)], check=True, capture_output=True, timeout=60)
        self.asked = next(iter(Distribution.discover(name="watersmeet", path=[str(self.packages)])))

    def link(self, extra: str = "") -> None:
        """Adds what the wheel asks for with an extra, from the environment of the tests."""
        for package in requirements(self.asked, extra):
            tops = {file.parts[0] for file in package.files or () if file.parts[0] not in ("..", "__pycache__")}
            for top in tops:
                place, there = self.packages / top, Path(str(package.locate_file(top)))
                if not place.exists():
                    place.symlink_to(there)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The command, with nothing on the PATH but the environment."""
        environ = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "JAVA", "SPARK"))
        }
        environ = {**environ, "PATH": str(self.bin), "COLUMNS": "120", "PYTHONDONTWRITEBYTECODE": "1"}
        command = [str(self.bin / "watersmeet"), *arguments]
        return subprocess.run(command, cwd=self.folder, env=environ, capture_output=True, text=True, timeout=60)


def requirements(package: Distribution, extra: str) -> Iterator[Distribution]:
    """What a package asks for with an extra, and what that asks for."""
    seen: set[tuple[str, str]] = set()
    waiting = [(package, extra)]
    while waiting:
        asking, extra = waiting.pop()
        for text in asking.requires or ():
            requirement = Requirement(text)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
                continue
            for wanted in ("", *requirement.extras):
                if (requirement.name.lower(), wanted) in seen:
                    continue
                seen.add((requirement.name.lower(), wanted))
                try:
                    found = distribution(requirement.name)
                except PackageNotFoundError:
                    pytest.fail(f"{asking.name} asks for {requirement.name}, which is not installed here")
                yield found
                waiting.append((found, wanted))


def test_the_wheel_works_as_far_as_what_is_installed_goes(wheel: Path, tmp_path: Path) -> None:
    clean = Clean(tmp_path, wheel)
    clean.link()
    version = clean.run("--version")
    assert version.stdout.split()[-1] == __version__, version.stderr
    for command in (
        ("init", "shop"),
        ("check", "shop"),
        ("test", "shop/cases", "--on", "kernel"),
        ("draw", "shop/cases/joined.yaml", "--output", "lifetimes.svg"),
    ):
        ran = clean.run(*command)
        assert ran.returncode == 0, (command, ran.stdout, ran.stderr)
    assert (tmp_path / "lifetimes.svg").read_text("utf-8").startswith("<svg")

    # each refusal names the extra that is missing
    assert refusal(clean.run("play", "shop")) == ("BOARD_NOT_INSTALLED", "watersmeet[ui]")
    assert refusal(clean.run("run", "shop", "--end")) == ("SPARK_NOT_INSTALLED", "watersmeet[spark]")
    clean.link("spark")
    assert refusal(clean.run("run", "shop", "--end")) == ("JAVA_NOT_FOUND", "watersmeet[java]")


def refusal(ran: subprocess.CompletedProcess[str]) -> tuple[str, str]:
    """The condition of a refusal, and what its hint wants to be installed."""
    assert ran.returncode != 0
    assert "Traceback" not in ran.stderr
    condition = re.search(r"\[([A-Z_]+)\]", ran.stderr)
    hint = re.search(r"watersmeet\[\w+\]", ran.stderr.partition("Hint:")[2])
    assert condition and hint, ran.stderr
    return condition[1], hint[0]
