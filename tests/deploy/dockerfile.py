"""A Dockerfile, read into instructions, and executed in changed roots: what a container engine does, without one.

Stages are folders. RUN lines run in them by ``chroot``, as root, with the network of this machine; needs root, and
``debootstrap`` for the base image, which is taken to be what ``debian:bookworm-slim`` has.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
SHELL = ("/bin/sh", "-c")


@dataclass(frozen=True)
class Instruction:
    """One instruction: its name, its flags (``--from=build``), and the rest."""

    name: str
    flags: Mapping[str, str]
    rest: str

    @property
    def words(self) -> list[str]:
        """The rest as a list: as JSON where it is one, else split at spaces."""
        return json.loads(self.rest) if self.rest.startswith("[") else shlex.split(self.rest)


def instructions(text: str) -> Iterator[Instruction]:
    """The instructions of a Dockerfile."""
    joined = re.sub(r"\\\n", "", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE))
    for line in filter(str.strip, joined.splitlines()):
        name, rest = line.split(None, 1)
        flags: dict[str, str] = {}
        while flag := re.match(r"--([\w-]+)=(\S+)\s+", rest):
            flags[flag[1]] = flag[2]
            rest = rest[flag.end() :]
        yield Instruction(name, flags, rest.strip())


@dataclass
class Stage:
    """A stage: the folder that is its root, and what an image says besides."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict[str, str])
    arguments: dict[str, str] = field(default_factory=dict[str, str])
    shell: Sequence[str] = SHELL
    folder: str = "/"
    user: str = "0"
    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    health: Sequence[str] = ()


def describe(text: str) -> Stage:
    """What the last stage of a Dockerfile says, without its files."""
    return _read(text, Path("/"), {}, None)[-1]


def build(text: str, context: Path, base: Path, folder: Path, arguments: Mapping[str, str]) -> Stage:
    """Execute a Dockerfile; gives its last stage. ``base``: the root of an image for the first FROM."""
    return _read(text, folder, arguments, (context, base))[-1]


def _read(text: str, folder: Path, given: Mapping[str, str], build: tuple[Path, Path] | None) -> list[Stage]:
    """The stages of a Dockerfile; ``build``: the context and the root of the base image, if it is executed."""
    stages: dict[str, Stage] = {}
    stage = Stage(folder)
    for instruction in instructions(text):
        if instruction.name == "FROM":
            image, _, name = instruction.rest.partition(" AS ")
            stage = stages[name or "final"] = _begin(folder / (name or "final"), stages.get(image))
            if build is not None:
                stage.root.parent.mkdir(parents=True, exist_ok=True)
                source = stages[image].root if image in stages else build[1]
                subprocess.run(["cp", "--archive", "--reflink=auto", source, stage.root], check=True)
        else:
            _describe(instruction, stage, given)
            if build is not None:
                _execute(instruction, stage, build[0], stages)
    return list(stages.values())


def _begin(root: Path, parent: Stage | None) -> Stage:
    return Stage(root) if parent is None else Stage(root, dict(parent.environment), shell=parent.shell)


def _describe(instruction: Instruction, stage: Stage, given: Mapping[str, str]) -> None:
    """Note in the stage what an instruction says."""
    rest = instruction.rest
    match instruction.name:
        case "ARG":
            name, _, default = rest.partition("=")
            stage.arguments[name] = given.get(name, default.strip('"'))
        case "ENV":
            stage.environment |= dict(word.split("=", 1) for word in instruction.words)
        case "SHELL":
            stage.shell = instruction.words
        case "WORKDIR":
            stage.folder = rest
        case "USER":
            stage.user = rest
        case "ENTRYPOINT":
            stage.entrypoint = instruction.words
        case "CMD":
            stage.command = instruction.words
        case "HEALTHCHECK":
            stage.health = json.loads(rest.partition("CMD")[2])
        case other:
            assert other in ("COPY", "RUN", "EXPOSE"), f"{other} is not known here"


def _execute(instruction: Instruction, stage: Stage, context: Path, stages: Mapping[str, Stage]) -> None:
    """Do in the root of the stage what an instruction says."""
    match instruction.name:
        case "WORKDIR":
            (stage.root / instruction.rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        case "COPY":
            _copy(instruction, stage, context, stages)
        case "RUN":
            variables = {**stage.arguments, **network_of_this_machine(stage.root)}
            run_in(stage, [*stage.shell, instruction.rest], variables)
        case _:
            pass


def _copy(instruction: Instruction, stage: Stage, context: Path, stages: Mapping[str, Stage]) -> None:
    *sources, target = instruction.words
    place = stage.root / os.path.normpath(f"{stage.folder}/{target}" if not target.startswith("/") else target)[1:]
    source_root = stages[instruction.flags["from"]].root if "from" in instruction.flags else context
    for source in sources:
        origin = source_root / source.lstrip("/")
        into = place / origin.name if target.endswith("/") else place
        into.parent.mkdir(parents=True, exist_ok=True)
        if origin.is_dir():
            ignored = shutil.ignore_patterns("__pycache__") if source_root is context else None
            shutil.copytree(origin, into, symlinks=True, dirs_exist_ok=True, ignore=ignored)
        else:
            shutil.copy2(origin, into)
        if mode := instruction.flags.get("chmod"):
            into.chmod(int(mode, 8))


def network_of_this_machine(root: Path) -> dict[str, str]:
    """What this machine needs to reach the network, put into another root: names, certificates, proxies, indexes.

    A container engine gives names only. The rest is for machines behind a proxy, and stays out of the image's files.
    """
    folder = root / "run" / "machine"
    folder.mkdir(parents=True, exist_ok=True)
    for file in ("resolv.conf", "hosts"):
        shutil.copy(Path("/etc") / file, root / "etc" / file)
    bundle = Path("/etc/ssl/certs/ca-certificates.crt")
    names = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX")
    variables = {name: os.environ[name] for given in names for name in (given, given.lower()) if name in os.environ}
    if bundle.exists():
        shutil.copy(bundle, folder / "bundle.crt")
        variables |= dict.fromkeys(("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"), "/run/machine/bundle.crt")
    store = Path("/etc/ssl/certs/java/cacerts")
    if store.exists():
        shutil.copy(store, folder / "cacerts")
        variables["JAVA_TOOL_OPTIONS"] = "-Djavax.net.ssl.trustStore=/run/machine/cacerts"
    return variables


_ENTER = """
mount --bind /dev "$0/dev" && mount -t proc proc "$0/proc" && exec chroot "$@"
"""


def run_in(stage: Stage, command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run a command of a build in a stage; what it prints is shown if it fails."""
    variables = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
    variables |= stage.environment | dict(environment)
    pairs = [f"{name}={value}" for name, value in variables.items()]
    inside = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', stage.folder, *command]
    entered = ["unshare", "--mount", "--pid", "--fork", "sh", "-c", _ENTER, str(stage.root), str(stage.root)]
    ran = subprocess.run(
        [*entered, "/usr/bin/env", "-i", *pairs, *inside], capture_output=True, text=True, timeout=1800
    )
    assert ran.returncode == 0, f"{shlex.join(command)}\n{ran.stdout[-2000:]}\n{ran.stderr[-4000:]}"


# A read-only root, as the manifests want it, with the volumes that they mount; "$@": source, target, ... -- command.
_CONTAINER = """
root=$1; shift
mount --bind "$root" "$root" && mount --bind /dev "$root/dev" && mount -t proc proc "$root/proc" || exit 125
mount -t tmpfs tmpfs "$root/tmp" && mount -t tmpfs -o mode=777 tmpfs "$root/var/spark" || exit 125
while [ "$1" != -- ]; do mount --bind "$1" "$root$2" || exit 125; shift 2; done
shift
mount -o remount,bind,ro "$root" && exec chroot --userspec="$1" "$root" "$@"
"""


def start_container(
    stage: Stage,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    mounts: Mapping[Path, str],
    out: int | IO[str] = subprocess.PIPE,
) -> subprocess.Popen[str]:
    """Start the entry point of an image: as its user, in a read-only root and with process numbers of its own.

    ``mounts``: folders of this machine, and where they are in the container, in folders that the image has.
    """
    # An engine gives a container the names of hosts, its own among them.
    network_of_this_machine(stage.root)
    pairs = [f"{name}={value}" for name, value in (stage.environment | dict(environment)).items()]
    inside = ["/usr/bin/env", "-i", *pairs, "/bin/sh", "-c", 'cd "$0" && exec "$@"', stage.folder]
    volumes = [part for source, target in mounts.items() for part in (str(source), target)]
    script = _CONTAINER.replace('"$1" "$root" "$@"', f'{stage.user}:{stage.user} "$root" "$@"')
    entered = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script, "sh", str(stage.root)]
    return subprocess.Popen(
        [*entered, *volumes, "--", *inside, *stage.entrypoint, *arguments],
        stdout=out, stderr=out, text=True,
    )  # fmt: skip
