"""Kafka behind a login and TLS: read by Spark's connector, written by librdkafka, with the same options."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from watersmeet.cli.servers import Broker, broker

topics = pytest.importorskip("faults.topics", reason="confluent-kafka is not installed", exc_type=ImportError)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

SECURED = """
listeners={listeners},SECURED://127.0.0.1:{port}
advertised.listeners={advertised},SECURED://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURED:SASL_SSL
listener.name.secured.sasl.enabled.mechanisms=PLAIN
listener.name.secured.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
user_shop="hunter22";
listener.name.secured.ssl.keystore.type=PEM
listener.name.secured.ssl.keystore.location={keys}
"""


def secure_broker(made: Broker, folder: Path) -> tuple[str, Path]:
    """Another address of a broker, with a login and TLS, and the certificate that it is known by."""
    keys, certificate = folder / "keys.pem", folder / "ca.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(keys), "-out", str(certificate)]
    subprocess.run([*command, *names], check=True, capture_output=True)
    keys.write_text(keys.read_text() + certificate.read_text())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    file = made.folder / "broker.properties"
    told = dict(line.split("=", 1) for line in file.read_text().splitlines())
    more = {"listeners": told["listeners"], "advertised": told["advertised.listeners"], "port": port, "keys": keys}
    made.stop()
    file.write_text(file.read_text() + SECURED.format(**more))
    made.start()
    return f"127.0.0.1:{port}", certificate


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_rows_go_through_a_login_and_tls(tmp_path: Path) -> None:
    (tmp_path / "login").write_text(
        'org.apache.kafka.common.security.plain.PlainLoginModule required username="shop" password="hunter22";'
    )
    with broker() as kafka:
        address, certificate = secure_broker(kafka, tmp_path)
        for name in ("in", "out"):
            topics.create(kafka.address, name)
        topics.send_rows(kafka.address, "in", [{"id": number} for number in range(5)])
        options = (
            f"kafka.bootstrap.servers '{address}', kafka.security.protocol 'SASL_SSL', kafka.sasl.mechanism 'PLAIN', "
            "kafka.sasl.jaas.config '${file:login}', kafka.ssl.truststore.type 'PEM', "
            f"kafka.ssl.truststore.location '{certificate}', value.format 'json'"
        )
        script = tmp_path / "copied.sql"
        script.write_text(
            f"CREATE STREAM read (id BIGINT) USING kafka OPTIONS ({options}, subscribe 'in', "
            "startingOffsets 'earliest');\n"
            f"CREATE SINK out USING kafka OPTIONS ({options}, topic 'out', delivery 'exactly_once');\n"
            "INSERT INTO out SELECT STREAM id FROM read;\n"
        )
        command = [str(Path(sys.executable).with_name("watersmeet")), "run", str(script), "--once"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "hunter22" not in done.stdout + done.stderr
        assert sorted(one.row["id"] for one in topics.read(kafka.address, "out")) == [*range(5)]
        # With another password nothing is read or written, and that is said.
        (tmp_path / "login").write_text((tmp_path / "login").read_text().replace("hunter22", "hunter23"))
        shutil.rmtree(tmp_path / "copied.storage")
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode in (1, 4) and "uthenti" in done.stderr, done.stderr
        assert "Traceback" not in done.stderr and "hunter23" not in done.stderr
        assert len(topics.read(kafka.address, "out")) == 5
