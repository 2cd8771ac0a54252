"""An API server of Kubernetes with a node: it keeps the objects that Spark makes, and runs pods as processes here.

It answers what Spark asks on loopback: create, get, list by labels, apply and delete. It has no watches: Spark is set
to ask again (`POLLING`).
"""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

POLLING = {
    "spark.kubernetes.executor.enableApiWatcher": "false",
    "spark.kubernetes.executor.apiPollingInterval": "1s",
}

Pod = dict[str, Any]
Start = Callable[[list[str], dict[str, str]], "subprocess.Popen[str]"]
"""Starts the container of a pod, from its arguments and its environment."""


class Cluster:
    """The objects by kind and name, and the processes of the pods."""

    def __init__(self, start: Start | None, secrets: Mapping[str, Mapping[str, str]]) -> None:
        self.start, self.secrets = start, secrets
        self.address = ""
        self.objects: dict[str, dict[str, Any]] = {}
        self.created: list[dict[str, Any]] = []
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.lock = threading.Lock()

    @property
    def pods(self) -> list[Pod]:
        """All pods that were created, the first one first, as they were asked for."""
        return [made for made in self.created if made["kind"] == "Pod"]

    def create(self, kind: str, made: dict[str, Any]) -> dict[str, Any]:
        """Keep an object; a pod is started."""
        name = made["metadata"]["name"]
        self.created.append(json.loads(json.dumps(made)))
        made["metadata"] |= {"uid": f"uid-{name}", "creationTimestamp": "2026-03-02T08:00:00Z", "resourceVersion": "1"}
        with self.lock:
            self.objects.setdefault(kind, {})[name] = made
            if kind == "pods":
                made["status"] = {"phase": "Pending"}
                if self.start is not None:
                    (container,) = made["spec"]["containers"]
                    self.processes[name] = self.start(container["args"], self._environment(made, container))
        return made

    def _environment(self, pod: Pod, container: dict[str, Any]) -> dict[str, str]:
        fields = {"status.podIP": "127.0.0.1", "metadata.name": pod["metadata"]["name"]}
        secrets = [self.secrets[source["secretRef"]["name"]] for source in container.get("envFrom", ())]
        variables = {name: value for secret in secrets for name, value in secret.items()}
        for variable in container.get("env", ()):
            source = variable.get("valueFrom")
            value = variable.get("value", "") if source is None else fields[source["fieldRef"]["fieldPath"]]
            variables[variable["name"]] = value
        return variables

    def refresh(self) -> None:
        """Set the phases of the pods by their processes."""
        with self.lock:
            for name, process in self.processes.items():
                if (pod := self.objects["pods"].get(name)) is not None:
                    code = process.poll()
                    phase = "Running" if code is None else "Failed" if code else "Succeeded"
                    state = {"running": {}} if code is None else {"terminated": {"exitCode": abs(code)}}
                    (container,) = pod["spec"]["containers"]
                    status = {"name": container["name"], "ready": code is None, "restartCount": 0, "state": state}
                    status |= {"image": container["image"], "imageID": ""}
                    pod["status"] = {"phase": phase, "podIP": "127.0.0.1", "containerStatuses": [status]}

    def delete(self, kind: str, names: list[str]) -> None:
        """Remove objects; pods are stopped."""
        with self.lock:
            for name in names:
                self.objects.get(kind, {}).pop(name, None)
                if name in self.processes and kind == "pods":
                    self.processes[name].terminate()

    def select(self, kind: str, labels: str) -> list[dict[str, Any]]:
        """The objects with all those labels."""
        wanted = [re.fullmatch(r"([^!=]+)(!?)=([^=]+)", label) for label in labels.split(",") if label]
        assert all(wanted), labels

        def has_labels(labels: Mapping[str, str]) -> bool:
            return all((labels.get(label[1]) == label[3]) is not bool(label[2]) for label in wanted if label)

        return [each for each in self.objects.get(kind, {}).values() if has_labels(each["metadata"].get("labels", {}))]


@contextmanager
def kubernetes(start: Start | None, secrets: Mapping[str, Mapping[str, str]] = {}) -> Generator[Cluster]:
    """Serve a cluster while this is entered, and stop all pods at the end."""
    cluster = Cluster(start, secrets)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = yaml.safe_load(self.rfile.read(length)) if length else {}
            address = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(address.query).items()}
            # /api/v1/namespaces/NAMESPACE/KIND[/NAME]
            parts = address.path.strip("/").split("/")[4:]
            if "watch" in query or not parts:
                self._answer(HTTPStatus.NOT_FOUND, {})
                return
            kind, name = parts[0], parts[1] if len(parts) > 1 else None
            cluster.refresh()
            match self.command, name:
                case "POST", None:
                    self._answer(HTTPStatus.CREATED, cluster.create(kind, body))
                case "GET", None:
                    items = cluster.select(kind, query.get("labelSelector", ""))
                    what = {"pods": "PodList", "configmaps": "ConfigMapList"}.get(kind, "List")
                    meta = {"resourceVersion": "1"}
                    self._answer(HTTPStatus.OK, {"kind": what, "apiVersion": "v1", "metadata": meta, "items": items})
                case "DELETE", _:
                    selected = cluster.select(kind, query.get("labelSelector", ""))
                    cluster.delete(kind, [one["metadata"]["name"] for one in selected] if name is None else [name])
                    self._answer(HTTPStatus.OK, {"kind": "Status", "apiVersion": "v1", "status": "Success"})
                case "PATCH", str() if name not in cluster.objects.get(kind, {}):
                    # Server-side apply.
                    self._answer(HTTPStatus.CREATED, cluster.create(kind, body))
                case _, str() if name in cluster.objects.get(kind, {}):
                    self._answer(HTTPStatus.OK, cluster.objects[kind][name])
                case _:
                    self._answer(HTTPStatus.NOT_FOUND, {"kind": "Status", "apiVersion": "v1", "code": 404})

        do_GET = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815 - the base class calls them so

        def _answer(self, status: HTTPStatus, found: dict[str, Any]) -> None:
            body = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    cluster.address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield cluster
    finally:
        server.shutdown()
        server.server_close()
        for process in cluster.processes.values():
            process.kill()
            process.wait(timeout=30)
