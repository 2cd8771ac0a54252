"""The peers that are Java libraries: download them from Maven Central and compile their program, without a JDK."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from watersmeet.errors import WatersmeetError
from watersmeet.spark.session.java import fetch_jars, prepare_java

KAFKA_STREAMS, HAZELCAST = "kafka-streams", "hazelcast"
_JACKSON = "com.fasterxml.jackson.core:jackson-databind:2.16.2"
_LOGS = "org.slf4j:slf4j-api:1.7.36"
"""The logging API of Kafka's client; without an implementation it logs nothing."""
PACKAGES: Mapping[str, tuple[str, ...]] = {
    KAFKA_STREAMS: ("org.apache.kafka:kafka-streams:3.9.1", _JACKSON),
    HAZELCAST: ("com.hazelcast:hazelcast:5.6.0", "com.hazelcast.jet:hazelcast-jet-kafka:5.6.0", _JACKSON, _LOGS),
}
PROGRAMS = {KAFKA_STREAMS: "StreamsJoin", HAZELCAST: "JetJoin"}
COMPILER = "org.eclipse.jdt:ecj:3.37.0"
"""Runs on any Java, where ``javac`` needs a JDK."""
SOURCES = Path(__file__).parent / "java"
OPTIONS = ("-Xmx6g", "-XX:+UseParallelGC")


@cache
def absence_reason(peer: str) -> str | None:
    """The reason why a peer cannot take part, or None: its jars, or the compiler, cannot be had."""
    try:
        for packages in (PACKAGES[peer], (COMPILER,)):
            fetch_jars(packages, os.environ, is_whole=packages == (COMPILER,))
    except WatersmeetError as problem:
        return str(problem).splitlines()[0]
    return None


def command(peer: str, *arguments: str) -> list[str]:
    """The command that runs the program of a peer."""
    java = str(prepare_java(dict(os.environ)) / "bin" / "java")
    jars = [str(jar) for jar in fetch_jars(PACKAGES[peer], os.environ, is_whole=False)]
    classes = _compile_program(peer, java, tuple(jars))
    return [java, *OPTIONS, "-cp", os.pathsep.join([str(classes), *jars]), PROGRAMS[peer], *arguments]


@cache
def _compile_program(peer: str, java: str, jars: tuple[str, ...]) -> Path:
    (compiler,) = fetch_jars([COMPILER], os.environ, is_whole=True)
    into = Path(tempfile.gettempdir()) / "watersmeet-bench" / f"classes-{peer}"
    sources = [str(SOURCES / f"{name}.java") for name in ("Row", PROGRAMS[peer])]
    command_line = [
        java,
        "-jar",
        str(compiler),
        "-17",
        "-nowarn",
        "-d",
        str(into),
        "-cp",
        os.pathsep.join(jars),
        *sources,
    ]
    subprocess.run(command_line, check=True)
    return into
