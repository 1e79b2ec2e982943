"""A real Prometheus and a real Alertmanager that watch a server, on free loopback ports."""

from __future__ import annotations

import contextlib
import http.server
import json
import math
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from prometheus_tools import TEMPLATES, tool

from dashboards.alerts import GENERATED

# Shorter than anybody's, so that one drill is enough to tell which alert comes before which.
SCRAPE_SECONDS = 1
_READY_SECONDS = 120.0
_POLL_SECONDS = 1.0

Series = tuple[dict[str, str], list[tuple[float, float]]]  # labels, and times with values


_HOST = "127.0.0.2"  # where no port is given to connections of others


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind((_HOST, 0))
        port: int = listener.getsockname()[1]
        return port


def get_json(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


@dataclass(slots=True)
class Pager:
    """What Alertmanager has sent: the receivers of the example, as paths of one web server."""

    port: int
    sent: list[tuple[str, dict[str, Any]]] = field(default_factory=list)  # path and alert

    def firing(self, path: str) -> set[str]:
        """Names of the alerts that this receiver was told to be firing."""
        return {
            alert["labels"]["alertname"]
            for to, alert in self.sent
            if to == path and alert["status"] == "firing"
        }


@contextlib.contextmanager
def pager() -> Iterator[Pager]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            told.sent.extend((self.path, alert) for alert in body["alerts"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    told = Pager(server.server_port)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield told
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass(slots=True)
class Watch:
    """The watchers of one server, and what they have seen since they began."""

    prometheus: str  # URL
    alertmanager: str
    pager: Pager
    began_seconds: float  # Unix time, as all here
    inhibited: dict[str, set[str]] = field(default_factory=dict)  # by what, whom

    def samples(self, expression: str, step_seconds: int = SCRAPE_SECONDS) -> list[Series]:
        """Values since the beginning, those that are no number left out."""
        query = urllib.parse.urlencode(
            {
                "query": expression,
                "start": self.began_seconds,
                "end": time.time(),
                "step": step_seconds,
            }
        )
        try:
            answer = get_json(f"{self.prometheus}/api/v1/query_range?{query}")
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from error
        return [
            (
                series["metric"],
                [(at, number) for at, v in series["values"] if not math.isnan(number := float(v))],
            )
            for series in answer["data"]["result"]
        ]

    def has_data(self, expression: str) -> bool:
        """Whether it had a value at any time."""
        return any(values for _, values in self.samples(expression, step_seconds=5))

    def first_seconds(self, expression: str) -> float | None:
        """When it had its first value; None: never."""
        times = [values[0][0] for _, values in self.samples(expression) if values]
        return min(times, default=None)

    def look_for_inhibition(self) -> None:
        """Notes who keeps whom quiet in Alertmanager at this moment."""
        alerts = get_json(f"{self.alertmanager}/api/v2/alerts")
        names = {alert["fingerprint"]: alert["labels"]["alertname"] for alert in alerts}
        for alert in alerts:
            for source in alert["status"]["inhibitedBy"]:
                if source in names:
                    whom = self.inhibited.setdefault(names[source], set())
                    whom.add(alert["labels"]["alertname"])


@contextlib.contextmanager
def watch(metrics_address: str, folder: Path) -> Iterator[Watch]:
    """Scrapes the server and evaluates the rules as they are shipped, until the block ends."""
    with pager() as told, contextlib.ExitStack() as stack:
        ports = free_port(), free_port()
        prometheus, alertmanager = (f"{_HOST}:{port}" for port in ports)
        stack.enter_context(_alertmanager(folder, alertmanager, told.port))
        stack.enter_context(_prometheus(folder, prometheus, alertmanager, metrics_address))
        seen = Watch(f"http://{prometheus}", f"http://{alertmanager}", told, time.time())
        over = threading.Event()

        def keep_looking() -> None:
            while not over.wait(_POLL_SECONDS):
                seen.look_for_inhibition()

        thread = threading.Thread(target=keep_looking)
        thread.start()
        try:
            yield seen
        finally:
            over.set()
            thread.join()


def _alertmanager(
    folder: Path, address: str, pager_port: int
) -> contextlib.AbstractContextManager[None]:
    """With the example that is shipped, its receivers being ours."""
    example = (GENERATED / "alertmanager-example.yaml").read_text()
    assert "http://127.0.0.1:9095/" in example
    config = folder / "alertmanager.yml"
    config.write_text(example.replace("127.0.0.1:9095", f"127.0.0.1:{pager_port}"))
    return _running(
        *(str(tool("alertmanager")), f"--config.file={config}", "--cluster.listen-address="),
        *(f"--storage.path={folder / 'alertmanager'}", f"--web.listen-address={address}"),
        log=folder / "alertmanager.log",
        ready=f"http://{address}/-/ready",
    )


def _prometheus(
    folder: Path, address: str, alertmanager: str, target: str
) -> contextlib.AbstractContextManager[None]:
    labels = {"namespace": "harbour", "pod": "plimsoll-0"}
    config = folder / "prometheus.yml"
    config.write_text(
        yaml.safe_dump(
            {
                "global": {"scrape_interval": f"{SCRAPE_SECONDS}s"},
                "rule_files": [str(GENERATED / "prometheus-rules.yaml")],
                "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]},
                "scrape_configs": [
                    {
                        "job_name": "plimsoll",
                        "static_configs": [{"targets": [target], "labels": labels}],
                    }
                ],
            }
        )
    )
    return _running(
        *(str(tool("prometheus")), f"--config.file={config}", "--log.level=warn"),
        *(f"--storage.tsdb.path={folder / 'prometheus'}", f"--web.listen-address={address}"),
        log=folder / "prometheus.log",
        ready=f"http://{address}/-/ready",
    )


@contextlib.contextmanager
def _running(*command: str, log: Path, ready: str) -> Iterator[None]:
    folder = TEMPLATES if TEMPLATES.exists() else None
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=folder)
    try:
        give_up = time.monotonic() + _READY_SECONDS
        while not _answers(ready):
            if process.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError(f"{command[0]} did not start:\n{log.read_text()[-4000:]}")
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(30)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False
