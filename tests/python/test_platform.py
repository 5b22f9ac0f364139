"""The page for a platform team: its units, manifests, configuration, tokens and alerts are taken from the page, checked
by the tools that read them, and used with the real processes."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pyarrow.flight as flight
import pytest
import yaml

from support import Process, Server, Worker, binary, environment
from test_docs import DOCS, Block, blocks

PAGE = DOCS / "operations.md"
PATIENCE_SECONDS = 60
# What stays open after a drain, by the page.
MARGIN_SECONDS = 10
# The default of a dispatcher.
DISPATCHER_DRAIN_SECONDS = 5


def of(language: str, document: Path = PAGE) -> list[Block]:
    found = [block for block in blocks(document) if block.language == language]
    assert found, f"{document.name} has no block of {language}"
    return found


def documents() -> list[Any]:
    return [document for block in of("yaml") for document in yaml.safe_load_all(block.code)]


def manifests() -> list[dict]:
    found = [document for document in documents() if "apiVersion" in document]
    kinds = [manifest["kind"] for manifest in found]
    assert kinds == ["Service", "Deployment", "Service", "StatefulSet", "HorizontalPodAutoscaler"]
    return found


def pods() -> dict[str, dict]:
    """The pods of the manifests, by the command of their container."""
    specs = [manifest["spec"]["template"]["spec"] for manifest in manifests() if "template" in manifest["spec"]]
    return {spec["containers"][0]["args"][0]: spec for spec in specs}


def run(*arguments: str | Path, variables: dict[str, str] | None = None) -> subprocess.CompletedProcess:
    command = [binary(), *map(str, arguments)]
    variables = environment() | (variables or {})
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=PATIENCE_SECONDS)


def flags_and_variables(command: str) -> tuple[set[str], set[str]]:
    text = run(command, "--help").stdout
    return set(re.findall(r"(--[a-z-]+)", text)), set(re.findall(r"\[env: (\w+)[]=]", text))


def kept_in(folder: Path, text: str) -> str:
    """The text with paths of this test's own, and addresses of this machine."""
    folders = {"/etc/forebay": folder / "etc", "/var/lib/forebay": folder / "var"}
    for path, own in folders.items():
        text = text.replace(path, str(own))
    return text.replace("0.0.0.0", "127.0.0.1")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder with what the page expects of a machine: scripts, data, tokens and certificates, made as it says."""
    etc = tmp_path / "etc"
    for name in ["etc/scripts", "etc/tls", "etc/tokens", "var"]:
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "rows.csv").write_text("id\n" + "".join(f"{row}\n" for row in range(40)))
    (etc / "scripts/pipelines.sql").write_text(
        f"CREATE EXTERNAL TABLE rows STORED AS CSV LOCATION '{tmp_path}/rows.csv';"
        + "".join(f"CREATE PIPELINE {name} AS SELECT id FROM rows;" for name in ("train", "eval", "other"))
    )
    shutil.copy(etc / "scripts/pipelines.sql", etc / "pipelines.sql")
    [made] = [block for block in of("console") if "openssl req" in block.code]
    for line in made.code.splitlines():
        if line.startswith("$ openssl"):
            subprocess.run(line[2:], shell=True, cwd=etc / "tls", check=True, capture_output=True)
    for name in ["readers", "workers"]:
        subprocess.run(f"openssl rand -base64 32 > tokens/{name}", shell=True, cwd=etc, check=True)
    return tmp_path


def sections(unit: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in unit.splitlines() if "=" in line and not line.startswith("#"))


@pytest.mark.parametrize("unit", of("ini"), ids=lambda unit: Path(unit.code.splitlines()[0]).name)
def test_systemd_takes_the_units(unit: Block, tmp_path: Path):
    name = Path(unit.code.splitlines()[0].removeprefix("# ")).name
    settings = sections(unit.code)
    program, command, *arguments = settings["ExecStart"].split()
    assert program == "/usr/local/bin/forebay"
    flags, _ = flags_and_variables(command)
    assert {argument for argument in arguments if argument.startswith("--")} <= flags
    [settings_of_file] = [block.code for block in of("toml")]
    drain = re.search(r"^drain-timeout = (\d+)", settings_of_file.split(f"[{command}]")[1].split("[")[0], re.MULTILINE)
    drain_seconds = int(drain[1]) if drain else DISPATCHER_DRAIN_SECONDS
    assert int(settings["TimeoutStopSec"]) >= drain_seconds + MARGIN_SECONDS
    if not shutil.which("systemd-analyze"):
        pytest.skip("this machine has no systemd")
    (tmp_path / name).write_text(unit.code.replace(program, str(binary())))
    verified = subprocess.run(["systemd-analyze", "verify", tmp_path / name], capture_output=True, text=True)
    # A key that systemd does not know is a warning for it.
    assert (verified.returncode, verified.stderr) == (0, "")


def test_kubernetes_takes_the_manifests():
    for manifest in manifests():
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
    misspelt = json.loads(json.dumps(manifests()[1]).replace("readinessProbe", "readynessProbe"))
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(misspelt, kubernetes_validate.latest_version(), strict=True)
    [probe] = [document for document in documents() if "readinessProbe" in document]
    deployment = manifests()[1]
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    container.update(probe)
    kubernetes_validate.validate(deployment, kubernetes_validate.latest_version(), strict=True)
    assert probe["readinessProbe"]["grpc"]["port"] in [port["containerPort"] for port in container["ports"]]


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_a_pod_names_what_there_is(command: str):
    pod = pods()[command]
    [container] = pod["containers"]
    flags, variables = flags_and_variables(command)
    assert {argument for argument in container["args"] if argument.startswith("--")} <= flags
    names = {variable["name"] for variable in container["env"]}
    assert {name for name in names if name.startswith("FOREBAY_")} <= variables
    # Variables that others are made of come first.
    text = json.dumps(container["env"])
    assert set(re.findall(r"\$\((\w+)\)", text)) <= names
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe in ["livenessProbe", "readinessProbe"]:
        assert container[probe]["httpGet"]["port"] in ports
    assert {variable["name"]: variable.get("value") for variable in container["env"]}["FOREBAY_METRICS_PORT"] == str(
        ports["metrics"]
    )
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts.keys() == {volume["name"] for volume in pod["volumes"]}
    values = [*container["args"], *(variable.get("value", "") for variable in container["env"])]
    files = [value for value in values if value.startswith("/")]
    assert all(any(f"{file}/".startswith(f"{mount}/") for mount in mounts.values()) for file in files), files
    arguments = container["args"]
    drain = int(arguments[arguments.index("--drain-timeout") + 1]) if "--drain-timeout" in arguments else None
    assert pod["terminationGracePeriodSeconds"] >= (drain or DISPATCHER_DRAIN_SECONDS) + MARGIN_SECONDS


def test_services_lead_to_the_pods():
    services = [manifest for manifest in manifests() if manifest["kind"] == "Service"]
    assert len(services) == len(pods())
    for service, pod in zip(services, pods().values()):
        [port] = service["spec"]["ports"]
        assert port["port"] in [port["containerPort"] for port in pod["containers"][0]["ports"]]


def started(machine: Path, command: str, dispatcher: Process | None = None) -> Process:
    """The process of a pod, with its arguments and variables."""
    [container] = pods()[command]["containers"]
    text = kept_in(machine, json.dumps([container["args"], container["env"]]))
    if dispatcher is not None:
        text = text.replace("grpc+tls://feeds:7070", dispatcher.uri)
    arguments, env = json.loads(text)
    variables = {variable["name"]: variable["value"] for variable in env if "value" in variable}
    variables |= {"FOREBAY_METRICS_PORT": "0"}
    # Of the test's own are the ports, and the address that Kubernetes would make of the pod's name.
    variables.pop("FOREBAY_ADVERTISE", None)
    if "--port" in arguments:
        at = arguments.index("--port")
        arguments = arguments[:at] + arguments[at + 2 :]
    return Process(*arguments, variables=variables)


def test_the_pods_serve(machine: Path):
    with started(machine, "serve") as server, started(machine, "worker", server) as worker:
        assert worker.uri.startswith("grpc+tls://")
        token, ca = ((machine / "etc" / name).read_text() for name in ("tokens/readers", "tls/ca.crt"))
        options = ["--token-file", machine / "etc/tokens/readers", "--tls-ca", machine / "etc/tls/ca.crt"]
        ended = run("run", "--connect", server.uri, "--pipeline", "train", "--output", "json", *options)
        assert ended.returncode == 0, ended.stderr
        assert json.loads(ended.stdout.splitlines()[-1])["samples"] == 40
        refused = run("run", "--connect", server.uri, "--pipeline", "train", "--tls-ca", machine / "etc/tls/ca.crt")
        assert refused.returncode == 3, refused.stderr
        with flight.connect(server.uri, tls_root_certs=ca) as client:
            header = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {token.strip()}".encode())])
            assert len(list(client.list_flights(options=header))) == 3


def test_the_configuration_file_is_for_both(machine: Path):
    [block] = of("toml")
    text = kept_in(machine, block.code)
    text = re.sub(r"^metrics-port = \d+", "metrics-port = 0", text, flags=re.MULTILINE)
    (machine / "etc/tokens/readers").rename(machine / "etc/readers")
    shutil.rmtree(machine / "etc/tokens")
    (machine / "etc/readers").rename(machine / "etc/tokens")
    config = machine / "etc/forebay.toml"
    config.write_text(text)
    # The unit's command line, with a port of the test's own.
    with Process("serve", machine / "etc/pipelines.sql", "--config", config) as server:
        # The names and ports of the page are not of this machine; a flag beats the file.
        own = ["--dispatcher", server.uri, "--advertise", "grpc+tls://127.0.0.1:1"]
        with Process("worker", "--config", config, *own) as worker:
            assert server.started["metrics"] and worker.started["metrics"]
            client = ["--tls-ca", machine / "etc/tls/ca.crt", "--token-file", machine / "etc/tokens"]
            status = run("status", "--connect", server.uri, "--output", "json", *client)
            assert status.returncode == 0, status.stderr


def test_the_token_file_gives_its_roles(machine: Path):
    [block] = [block for block in of("text") if block.code.startswith("# token")]
    tokens = machine / "etc/tokens/all"
    tokens.write_text(block.code)
    lines = [line.split() for line in block.code.splitlines() if not line.startswith("#")]
    of_role = {line[1]: line[0] for line in lines}
    assert of_role.keys() == {"reader", "operator", "worker"}

    def as_role(role: str) -> dict[str, str]:
        return {"FOREBAY_TOKEN": of_role[role]}

    script = machine / "etc/scripts/pipelines.sql"
    with Server(script, "--token-file", str(tokens), "--no-worker") as server:
        # A worker sends the worker's token, and takes those of readers.
        with Worker(server, "--token-file", str(tokens)):
            for pipeline, code in [("train", 0), ("eval", 0), ("other", 3)]:
                ended = run("run", "--connect", server.uri, "--pipeline", pipeline, variables=as_role("reader"))
                assert ended.returncode == code, ended.stderr
            assert "may not read pipeline \"other\"" in ended.stderr
        for role, code in [("reader", 3), ("operator", 0), ("worker", 0)]:
            ended = run("reload", "--connect", server.uri, variables=as_role(role))
            assert ended.returncode == code, ended.stderr
        (machine / "reader").write_text(of_role["reader"])
        refused = run("worker", "--dispatcher", server.uri, "--port", "0", "--token-file", machine / "reader")
        assert refused.returncode == 3, refused.stderr


def metric_names(text: str) -> set[str]:
    return {re.sub(r"_(sum|count|bucket)$", "", name) for name in re.findall(r"\bforebay_\w+", text)}


def test_the_autoscaler_reads_a_metric_that_exists_and_scales_the_workers():
    *_, workers, autoscaler = manifests()
    target = autoscaler["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == (workers["kind"], workers["metadata"]["name"])
    [metric] = autoscaler["spec"]["metrics"]
    assert f"| `{metric['external']['metric']['name']}` | gauge |" in (DOCS / "metrics.md").read_text()


def test_alerts_are_about_metrics_that_exist():
    page = (DOCS / "metrics.md").read_text()
    known = set(re.findall(r"^\| `(forebay_\w+)` ", page, re.MULTILINE))
    [alerts] = [document for document in documents() if "groups" in document]
    rules = [rule for group in alerts["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 3
    for rule in rules:
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert metric_names(rule["expr"]) and metric_names(rule["expr"]) <= known, rule
    for block in of("promql", DOCS / "metrics.md"):
        assert metric_names(block.code) and metric_names(block.code) <= known, block.code
    counted = re.search(r"sum by \((\w+)\) \(rate\(forebay_failed_logins_total", json.dumps(rules))
    row = re.search(r"^\| `forebay_failed_logins_total` \|.*$", page, re.MULTILINE)
    assert counted and row and f"| {counted[1]} |" in row[0], "the rule's label is one of the metric's"


def test_the_exit_codes_are_those_of_the_help():
    page = PAGE.read_text().split("## Exit codes")[1].split("\n## ")[0]
    documented = set(re.findall(r"^\| (\d+) \|", page, re.MULTILINE))
    helped = run("--help").stdout.split("Exit codes:")[1]
    assert documented == set(re.findall(r"\b(\d+)\b", helped)), helped
