"""deploy/: the Dockerfile and the manifests, checked by their tools, and tried as far as that needs no engine.

By default, the entry point runs in the environment of the tests. With WATERSMEET_IMAGE=1 (``make image-test``) every
instruction of the Dockerfile is executed first, in changed roots, and the same tests run in what that gives. With
WATERSMEET_IMAGE=none all tests run, in the environment of the tests.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import kubernetes_validate
import pyspark
import pytest
import yaml
from tests.conftest import QUICK
from tests.deploy.dockerfile import DOCKERFILE, ROOT, Stage, build, describe, instructions, start_container
from tests.deploy.kubernetes_api import POLLING, kubernetes

from watersmeet.cli.init import init_project
from watersmeet.spark.session.java import prepare_java

BIN = Path(sys.executable).parent
IMAGE = "WATERSMEET_IMAGE"
MANIFESTS = sorted((ROOT / "deploy" / "kubernetes").rglob("*.yml"))
VERSIONS = ("1.31", "1.34", "1.37")
"""The versions of Kubernetes whose schemas the manifests must fit: old, middle, and the newest that is published."""
ON_LITTLE_DATA = [part for name, value in QUICK.items() for part in ("--conf", f"{name}={value}")]


def documents(path: Path) -> list[dict[str, Any]]:
    """The objects in a file of manifests."""
    return list(yaml.safe_load_all(path.read_text("utf-8")))


def manifest(path: str, kind: str) -> dict[str, Any]:
    """The one object of that kind in a file."""
    (found,) = [each for each in documents(ROOT / "deploy" / "kubernetes" / path) if each["kind"] == kind]
    return found


def check_schema(manifest: dict[str, Any]) -> None:
    """Fail if an object does not fit the published schemas, in which no unknown field is allowed."""
    for version in VERSIONS:
        kubernetes_validate.validate(manifest, version, strict=True)


# --- what the files say ------------------------------------------------------------------------------------------


def test_the_dockerfile_passes_its_linter() -> None:
    linted = subprocess.run([BIN / "hadolint", DOCKERFILE], capture_output=True, text=True, timeout=60)
    assert linted.returncode == 0, linted.stdout
    wrong = DOCKERFILE.read_text("utf-8").replace("USER 10001", "USER root")
    refused = subprocess.run([BIN / "hadolint", "-"], input=wrong, capture_output=True, text=True, timeout=60)
    assert "DL3002" in refused.stdout, "the last user should not be root"


def test_the_dockerfile_copies_what_is_there_and_not_ignored() -> None:
    ignore = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert ignore[0] == "*"
    admitted = {path for line in ignore if line.startswith("!") for path in ROOT.glob(line[1:])}
    for copy in instructions(DOCKERFILE.read_text("utf-8")):
        if copy.name == "COPY" and "from" not in copy.flags:
            for source in copy.words[:-1]:
                files = [ROOT / source] if (ROOT / source).is_file() else [*admitted & {*(ROOT / source).glob("*")}]
                files += [ROOT / source] if ROOT / source in admitted else []
                assert files, f"{source} is not there, or .dockerignore keeps it out"
                assert any({file, *file.parents} & admitted for file in files), source


def test_the_paths_of_the_dockerfile_fit() -> None:
    image, text = describe(DOCKERFILE.read_text("utf-8")), DOCKERFILE.read_text("utf-8")
    packages = f"/opt/watersmeet/lib/python{sys.version_info[0]}.11/site-packages"
    assert image.environment["SPARK_HOME"] == f"{packages}/pyspark"
    assert image.environment["PATH"].split(":")[0] == "/opt/watersmeet/bin"
    assert f"useradd --uid {image.user} " in text
    assert int(image.user) > 0, "not root, and by its number, as runAsNonRoot wants it"
    assert f"EXPOSE {image.command[image.command.index('--metrics-port') + 1]}\n" in text
    for line in (ROOT / "requirements" / "image.txt").read_text().splitlines():
        locked = re.match(r"([\w.-]+)==([\w.]+)", line)
        if locked:
            assert f"\n{locked[0]} " in (ROOT / "requirements" / "dev.txt").read_text(), "not what the tests ran with"


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.relative_to(ROOT / "deploy/kubernetes").as_posix())
def test_manifests_fit_the_published_schemas(path: Path) -> None:
    for each in documents(path):
        if each["kind"] != "ServiceMonitor":
            check_schema(each)


def test_a_wrong_manifest_is_noticed() -> None:
    deployment = manifest("one-pod/deployment.yml", "Deployment")
    deployment["spec"]["strategi"] = deployment["spec"].pop("strategy")
    with pytest.raises(kubernetes_validate.ValidationError):
        check_schema(deployment)


@pytest.mark.skipif(not os.environ.get(IMAGE), reason="fetches the schema from npm: in make image-test")
def test_the_service_monitor_fits_its_schema(tmp_path: Path) -> None:
    package = "@kubernetes-models/prometheus-operator"
    subprocess.run(["npm", "install", "--silent", "--no-audit", f"{package}@6.0.0"], cwd=tmp_path, check=True)
    monitor = manifest("prometheus-operator/monitor.yml", "ServiceMonitor")
    script = f"""
        import {{ServiceMonitor}} from "{package}/monitoring.coreos.com/v1/ServiceMonitor";
        const monitor = {json.dumps(monitor)};
        new ServiceMonitor(monitor).validate();
        monitor.spec.endpoints[0].interval = "15";
        try {{ new ServiceMonitor(monitor).validate() }} catch {{ console.log("noticed") }}
    """
    (tmp_path / "validate.mjs").write_text(script)
    ran = subprocess.run(["node", "validate.mjs"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.stdout == "noticed\n", ran.stderr


def test_the_manifests_agree_with_each_other_and_with_the_image() -> None:
    image = describe(DOCKERFILE.read_text("utf-8"))
    port = int(image.command[image.command.index("--metrics-port") + 1])
    (exposed,) = manifest("service.yml", "Service")["spec"]["ports"]
    (scraped,) = manifest("prometheus-operator/monitor.yml", "ServiceMonitor")["spec"]["endpoints"]
    assert (exposed["name"], exposed["port"]) == (scraped["port"], port)
    claims = {each["metadata"].get("name") for path in MANIFESTS for each in documents(path)}
    for path in ("one-pod", "executors"):
        deployment = manifest(f"{path}/deployment.yml", "Deployment")["spec"]
        pod = deployment["template"]["spec"]
        assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
        assert str(pod["securityContext"]["runAsUser"]) == image.user
        assert deployment["selector"]["matchLabels"] == manifest("service.yml", "Service")["spec"]["selector"]
        assert deployment["selector"]["matchLabels"].items() <= deployment["template"]["metadata"]["labels"].items()
        (container,) = pod["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["ports"] == [{"name": "metrics", "containerPort": port}]
        mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounted.keys() == {volume["name"] for volume in pod["volumes"]}
        assert {"/tmp", image.environment["SPARK_LOCAL_DIRS"], "/project"} <= {*mounted.values()}
        for volume in pod["volumes"]:
            named = volume.get("configMap", {}).get("name") or volume.get("persistentVolumeClaim", {}).get("claimName")
            assert named is None or named in claims | {"shop-pods"}, "which is made of templates/pod.yml"


def test_the_project_of_the_manifests_may_run(tmp_path: Path) -> None:
    (folder := tmp_path / "project").mkdir()
    mount_config(manifest("project.yml", "ConfigMap")["data"], folder)
    command = [BIN / "watersmeet", "check", str(folder)]
    checked = subprocess.run(
        command, env=os.environ | {"KAFKA": "broker:9092"}, capture_output=True, text=True, timeout=60
    )
    assert checked.stdout.endswith("joined: state bounded by time.\n"), checked.stderr
    (container,) = manifest("one-pod/deployment.yml", "Deployment")["spec"]["template"]["spec"]["containers"]
    storage = yaml.safe_load((folder / "watersmeet.yml").read_text())["storage"]
    assert storage in {mount["mountPath"] for mount in container["volumeMounts"]}


def mount_config(data: Mapping[str, str], folder: Path) -> None:
    """Lay out a ConfigMap of a project as a kubelet does: links to a folder that is replaced as a whole."""
    (volume,) = [
        volume["configMap"]
        for volume in manifest("one-pod/deployment.yml", "Deployment")["spec"]["template"]["spec"]["volumes"]
        if volume.get("configMap", {}).get("name") == "shop"
    ]
    for item in volume["items"]:
        path = folder / "..2026_03_02" / item["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(data[item["key"]])
        top = Path(item["path"]).parts[0]
        (folder / top).symlink_to(f"..data/{top}")
    (folder / "..data").symlink_to("..2026_03_02")


# --- what runs ---------------------------------------------------------------------------------------------------


class Containers:
    """Starts the entry point: in the image if it was built, else in the environment of the tests."""

    def __init__(self, image: Stage, folder: Path) -> None:
        self.image, self.folder = image, folder
        self.is_built = image.root.exists()

    def start(
        self,
        arguments: list[str],
        environment: Mapping[str, str] = {},
        out: int | IO[str] = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """Start a container, which sees the folder of the test as its storage. ``out``: where it prints."""
        if self.is_built:
            return start_container(self.image, arguments, environment, {self.folder: "/storage"}, out)
        home = {"JAVA_HOME": str(prepare_java(dict(os.environ))), "SPARK_HOME": str(Path(pyspark.__file__).parent)}
        own = {"WATERSMEET_CLASS_ARCHIVE": self.image.environment["WATERSMEET_CLASS_ARCHIVE"]}
        own |= {"PATH": f"{BIN}:/usr/bin:/bin", "PYSPARK_PYTHON": sys.executable, "HOME": os.environ["HOME"]}
        (work := self.folder / "work").mkdir(exist_ok=True)
        return subprocess.Popen(
            ["bash", str(ROOT / "deploy" / "entrypoint.sh"), *arguments], cwd=work, env=own | home | dict(environment),
            stdout=out, stderr=out, text=True,
        )  # fmt: skip

    def path(self, inside: str) -> str:
        """The path of a file of the test's folder, as the container has it."""
        return f"/storage/{inside}" if self.is_built else str(self.folder / inside)

    def signal(self, process: subprocess.Popen[str], number: int) -> None:
        """Send a signal to the first process of a container, as an engine does."""
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[0]) if self.is_built else process.pid, number)


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The image, built where that is asked for; else what the Dockerfile says of it."""
    text = DOCKERFILE.read_text("utf-8")
    if os.environ.get(IMAGE, "none") == "none":
        yield describe(text)
        return
    folder = tmp_path_factory.mktemp("image")
    mirror = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
    subprocess.run(["debootstrap", "--variant=minbase", "bookworm", folder / "debian", mirror], check=True)
    yield build(text, ROOT, folder / "debian", folder / "stages", {"JARS": "kafka"})
    shutil.rmtree(folder)


@pytest.fixture
def containers(image: Stage, tmp_path: Path) -> Containers:
    """Containers that share a folder, which anyone may write."""
    tmp_path.chmod(0o777)
    return Containers(image, tmp_path)


def make_shop(folder: Path, configuration: Mapping[str, str]) -> None:
    """Write the starter project, into which the user of a container may write."""
    init_project(folder / "shop")
    spec = yaml.safe_load((folder / "shop" / "watersmeet.yml").read_text())
    (folder / "shop" / "watersmeet.yml").write_text(yaml.safe_dump(spec | {"configuration": dict(configuration)}))
    for path in (folder / "shop").rglob("*"):
        path.chmod(0o777 if path.is_dir() else 0o666)
    (folder / "shop").chmod(0o777)


def rows(folder: Path) -> list[tuple[int, str | None]]:
    """The orders that came out, with their couriers."""
    files = (folder / "shop" / "output" / "joined").glob("*.json")
    read = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return sorted((row["order_id"], row.get("courier")) for row in read)


ROWS = [(1, "north"), (2, None), (3, None)]


@pytest.mark.spark
def test_the_entry_point_runs_a_project_is_healthy_and_stops_on_a_signal(containers: Containers) -> None:
    image = containers.image
    make_shop(containers.folder, QUICK)
    # With the image, the port as well; else one that is free.
    port = "9464" if containers.is_built else "0"
    command = [containers.path("shop") if word == "/project" else word for word in image.command]
    process = containers.start([port if word == "9464" else word for word in command])
    assert process.stdout is not None and process.stderr is not None
    while (address := re.match(r"Metrics are at http://0\.0\.0\.0:(\d+)/metrics", process.stderr.readline())) is None:
        assert process.poll() is None
    health = [word.replace("9464", address[1]) for word in image.health]
    assert process.stdout.readline().startswith("joined: batch 0, 5 rows in, 3 out")
    assert subprocess.run([sys.executable, *health[1:]], timeout=30).returncode == 0
    containers.signal(process, signal.SIGTERM)
    # Much less than the grace period of the manifests: what takes longer would be killed.
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, said
    assert "Stopped. Nothing is lost" in said
    assert rows(containers.folder) == ROWS
    assert subprocess.run([sys.executable, *health[1:]], timeout=30, stderr=subprocess.DEVNULL).returncode != 0


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.skipif(not os.environ.get(IMAGE), reason="a driver and an executor take half a minute: in make image-test")
def test_executors_are_made_from_the_manifests_and_run(containers: Containers) -> None:
    secrets = {"shop": {"KAFKA": "broker:9092"}}
    log = containers.folder / "executors.log"
    with (
        log.open("w") as out,
        kubernetes(lambda arguments, variables: containers.start(arguments, variables, out), secrets) as cluster,
    ):
        shutil.copytree(ROOT / "deploy" / "kubernetes" / "templates", containers.folder / "pods")
        driver = manifest("executors/deployment.yml", "Deployment")["spec"]["template"]
        driver |= {"apiVersion": "v1", "kind": "Pod"}
        driver["metadata"] |= {"name": "shop-1", "uid": "1"}
        cluster.objects["pods"] = {"shop-1": driver}
        known = {
            "$(NAMESPACE)": "default", "$(POD)": "shop-1", "$(POD_IP)": "127.0.0.1",
            "/pods/pod.yml": containers.path("pods/pod.yml"),
            "https://kubernetes.default.svc": cluster.address, "/project": containers.path("shop"),
            "--metrics-port=9464": "--metrics-port=0", "--restart=on-failure": "--restart=never",
        }  # fmt: skip
        arguments: list[str] = driver["spec"]["containers"][0]["args"]
        for name, value in known.items():
            arguments = [argument.replace(name, value) for argument in arguments]
        assert not [argument for argument in arguments if "$(" in argument]
        # One small executor is enough here, and where it is, all ports are on loopback.
        smaller = {"spark.executor.instances": "1", "spark.executor.memory": "600m", "spark.executor.cores": "2"}
        smaller |= {"spark.sql.shuffle.partitions": "2", **POLLING}
        make_shop(containers.folder, {name: value for name, value in QUICK.items() if name not in smaller})
        confs = [f"--conf={name}={value}" for name, value in smaller.items()]
        process = containers.start([*arguments, *confs, "--end"])
        _, said = process.communicate(timeout=800)
        assert process.returncode == 0, f"{said}\n{log.read_text()[-3000:]}"
        assert rows(containers.folder) == ROWS
        (executor,) = cluster.pods
        check_schema(executor)
        (container,) = executor["spec"]["containers"]
        assert container["resources"]["limits"]["memory"] == "2648Mi", "heap and memoryOverhead"
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert executor["metadata"]["ownerReferences"][0]["name"] == "shop-1"
        assert executor["metadata"]["labels"]["app.kubernetes.io/part-of"] == "shop"


@pytest.mark.spark
def test_the_command_of_the_page_submits_a_driver_that_fits_the_schemas(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "howto" / "kubernetes.md").read_text("utf-8")
    (shown,) = re.findall(r"^spark-submit .*?local:///\S+$", page, re.MULTILINE | re.DOTALL)
    with kubernetes(None) as cluster:
        command = shlex.split(shown.replace("\\\n", " ").replace("https://host:6443", cluster.address))
        command = [word.replace("=deploy/", f"={ROOT}/deploy/") for word in command]
        once = ["--conf", "spark.kubernetes.submission.waitAppCompletion=false"]
        home = {"JAVA_HOME": str(prepare_java(dict(os.environ))), "SPARK_HOME": str(Path(pyspark.__file__).parent)}
        ran = subprocess.run(
            [BIN / command[0], *once, *command[1:]], env=os.environ | home, cwd=tmp_path,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr[:3000]
    for made in cluster.created:
        check_schema(made)
    (driver,) = cluster.pods
    (container,) = driver["spec"]["containers"]
    assert container["args"][0] == "driver", "which the entry point knows"
    assert container["args"][-1].startswith("local:///")
    assert container["resources"]["limits"]["memory"] == "4096Mi", "2 GiB of heap and 2 GiB of overhead"
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert str(driver["spec"]["securityContext"]["runAsUser"]) == describe(DOCKERFILE.read_text("utf-8")).user
