"""Lines of servers that somebody could take for one another, as Prometheus computes them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_tools import tool

from dashboards.boards import quantities

GIB = 2**30
# Two pods of one name, and two servers without Kubernetes, by what the next step can get.
SERVERS = {
    'namespace="a",pod="plimsoll-0",instance="10.0.0.1:9002"': 8,
    'namespace="b",pod="plimsoll-0",instance="10.0.0.2:9002"': 16,
    'instance="127.0.0.1:9002"': 32,
    'instance="127.0.0.1:9012"': 64,
}


@pytest.mark.prometheus
def test_each_server_has_its_own_headroom(tmp_path: Path) -> None:
    expression = quantities.headroom()
    for variable in ("$namespace", "$model", "$pod"):
        expression = expression.replace(variable, ".*")
    content = {
        "tests": [
            {
                "interval": "5s",
                "input_series": [
                    {"series": f"{metric}{{{labels}}}", "values": f"{value * GIB}x12"}
                    for labels, headroom in SERVERS.items()
                    for metric, value in (
                        ("plimsoll_device_headroom_bytes", headroom),
                        ("plimsoll_device_memory_capacity_bytes", 128),
                    )
                ],
                "promql_expr_test": [
                    {
                        "expr": expression,
                        "eval_time": "30s",
                        "exp_samples": [
                            {"labels": f"{{{labels}}}", "value": headroom / 128}
                            for labels, headroom in SERVERS.items()
                        ],
                    }
                ],
            }
        ]
    }
    path = tmp_path / "servers.test.yaml"
    path.write_text(yaml.safe_dump(content))
    done = subprocess.run(
        [tool("promtool"), "test", "rules", path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
