"""How the command runs under an orchestrator: readiness, draining, logs, the environment, the configuration file, and
exit codes."""

import json
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import pytest

from support import Process, Server, Worker, binary, environment

PATIENCE_SECONDS = 60
ROWS = 40


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "clicks.csv").write_text("id\n" + "".join(f"{row}\n" for row in range(ROWS)))
    path = tmp_path / "clicks.sql"
    path.write_text("""
        CREATE EXTERNAL TABLE clicks STORED AS CSV LOCATION 'clicks.csv';
        CREATE PIPELINE train WITH (batch_size = 10) AS SELECT id FROM clicks;
    """)
    return path


def run(*arguments: str | Path, variables: dict[str, str] | None = None) -> subprocess.CompletedProcess:
    command = [binary(), *map(str, arguments)]
    variables = environment() | (variables or {})
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=PATIENCE_SECONDS)


def get(server: Process, path: str) -> tuple[int, str]:
    """Returns status and body of a path of the metrics port."""
    return get_url(server.started["metrics"].replace("/metrics", path))


def get_url(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def until(what: str, is_so: Callable[[], object]):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, f"waited {PATIENCE_SECONDS} s for {what}"
        time.sleep(0.02)


MEASURED = ("--metrics-port", "0")


def test_a_dispatcher_is_ready_when_its_pipelines_are_open(script: Path):
    with Server(script, *MEASURED) as server:
        until("readiness", lambda: get(server, "/readyz") == (200, "ok\n"))
        assert get(server, "/healthz") == (200, "ok\n")


def test_a_worker_is_ready_when_it_has_reached_a_dispatcher_and_stays_ready(script: Path, tmp_path: Path):
    with Server(script, "--no-worker") as first:
        port = first.port
    with Process("worker", "--dispatcher", f"grpc://127.0.0.1:{port}", *MEASURED) as worker:
        until("the start", lambda: get(worker, "/readyz")[1].startswith("waiting"))
        assert get(worker, "/readyz") == (503, "waiting: no dispatcher has answered this worker yet\n")
        assert get(worker, "/healthz") == (200, "ok\n"), "alive, and not to be restarted"
        with Server(script, "--no-worker", port=port):
            until("readiness", lambda: get(worker, "/readyz") == (200, "ok\n"))
        # Trainers still read from it.
        assert get(worker, "/readyz") == (200, "ok\n")


@contextmanager
def reading(dispatcher: Process):
    """A reader that holds a stream open."""
    import pyarrow.flight as flight

    with flight.connect(dispatcher.uri) as client:
        request = json.dumps({"pipeline": "train", "rank": 0, "world_size": 1, "epochs": 1_000_000})
        [endpoint] = client.get_flight_info(flight.FlightDescriptor.for_command(request)).endpoints
        stream = client.do_get(endpoint.ticket)
        stream.read_chunk()
        yield stream
        stream.cancel()


def test_the_drain_timeout_bounds_how_long_open_streams_continue(script: Path):
    with Server(script, "--drain-timeout", "1.5", *MEASURED) as server, reading(server):
        started = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        until("the answer of a draining server", lambda: get(server, "/readyz")[0] == 503)
        assert get(server, "/readyz")[1].startswith("draining")
        assert server.process.wait(PATIENCE_SECONDS) == 0
        assert 1.5 <= time.monotonic() - started < 4.5, "the default is 5 s"


def test_a_worker_drains_for_as_long_as_it_may(script: Path):
    with Server(script, "--no-worker") as dispatcher:
        with Process("worker", "--dispatcher", dispatcher.uri, "--drain-timeout", "1.5", *MEASURED) as worker:
            with reading(dispatcher):
                started = time.monotonic()
                worker.process.send_signal(signal.SIGTERM)
                until("the answer of a draining worker", lambda: get(worker, "/readyz")[0] == 503)
                assert get(worker, "/readyz")[1].startswith("draining")
                assert worker.process.wait(PATIENCE_SECONDS) == 0
                # What it still sends may continue for 5 s.
                assert time.monotonic() - started < 20, "the default is 30 s"


def test_a_server_that_nobody_reads_from_ends_at_once(script: Path):
    with Server(script, "--drain-timeout", "60") as server:
        started = time.monotonic()
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(PATIENCE_SECONDS) == 0
        assert time.monotonic() - started < 20


def test_a_second_interrupt_ends_a_server_that_drains(script: Path):
    with Server(script, "--drain-timeout", "60", *MEASURED) as server, reading(server):
        started = time.monotonic()
        server.process.send_signal(signal.SIGINT)
        until("the answer of a draining server", lambda: get(server, "/readyz")[0] == 503)
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(PATIENCE_SECONDS) == 130
        assert time.monotonic() - started < 20


def test_a_server_that_opens_its_pipelines_can_be_stopped(script: Path):
    # A store that accepts connections and never answers.
    with socket.socket() as store:
        store.bind(("127.0.0.1", 0))
        store.listen()
        script.write_text(script.read_text().replace("'clicks.csv'", "'s3://bucket/clicks.csv'"))
        variables = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{store.getsockname()[1]}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [binary(), "serve", str(script), "--port", "0", "--metrics-port", str(port)]
        with subprocess.Popen(command, env=environment() | variables, stderr=subprocess.PIPE) as server:
            store.accept()
            until("the metrics port", lambda: not socket.socket().connect_ex(("127.0.0.1", port)))
            status, text = get_url(f"http://127.0.0.1:{port}/readyz")
            assert status == 503 and text.startswith("starting"), text
            assert get_url(f"http://127.0.0.1:{port}/healthz") == (200, "ok\n")
            server.terminate()
            assert server.wait(PATIENCE_SECONDS) == 0


def test_logs_are_json(script: Path, tmp_path: Path):
    log = tmp_path / "log"
    with log.open("w") as stderr, Server(script, "--log-format", "json", "--log", "info", stderr=stderr) as server:
        with reading(server):
            pass
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert lines and all({"timestamp", "level", "target"} <= line.keys() for line in lines)
    assert any(line["level"] == "INFO" and line.get("message") for line in lines)


def test_the_error_that_ends_the_command_is_json_too(tmp_path: Path):
    ended = run("serve", tmp_path / "missing.sql", variables={"FOREBAY_LOG_FORMAT": "json"})
    [line] = [json.loads(line) for line in ended.stderr.splitlines()]
    assert (ended.returncode, line["exit_code"], line["level"]) == (2, 2, "ERROR")
    assert "missing.sql\" does not exist" in line["message"] and "check the path" in line["hint"] and line["timestamp"]


OTHER_VARIABLES = {"--rank": "RANK", "--world-size": "WORLD_SIZE"}
WITHOUT_VARIABLE = {"--connect", "--help", "--version"}


COMMANDS = [
    "demo", "run", "preview", "explain", "advise", "plan", "materialize", "gc", "serve", "worker", "status", "policy",
    "reload", "operators", "formats", "sql",
]  # fmt: skip


def test_all_commands_are_listed_here():
    listed = run("--help").stdout.partition("Commands:\n")[2].partition("\n\n")[0]
    assert re.findall(r"^  (\w+) ", listed, flags=re.MULTILINE) == [*COMMANDS, "help"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_has_a_variable(command: str):
    # Each option begins on a line of its own; its text, with the variable, is below.
    parts = re.split(r"^(?:  -\w, |      )(--[a-z-]+)", run(command, "--help").stdout, flags=re.MULTILINE)
    flags = dict(zip(parts[1::2], parts[2::2]))
    assert {"--log", "--config"} <= flags.keys()
    for flag, text in flags.items():
        variable = OTHER_VARIABLES.get(flag, "FOREBAY_" + flag[2:].upper().replace("-", "_"))
        assert flag in WITHOUT_VARIABLE or re.search(rf"\[env: {variable}[]=]", text), flag


def test_variables_work_and_flags_beat_them(script: Path):
    def batches(*arguments: str, **variables: str) -> list[dict]:
        ended = run("run", script, "--output", "json", *arguments, variables=variables)
        assert ended.returncode == 0, ended.stderr
        return [json.loads(line) for line in ended.stdout.splitlines()][:-1]

    assert len(batches()) == 4
    assert len(batches(FOREBAY_BATCH_SIZE="20")) == 2
    assert len(batches("--batch-size", "40", FOREBAY_BATCH_SIZE="20")) == 1
    assert len(batches(FOREBAY_BATCH_SIZE="")) == 4, "an empty variable is unset"
    assert len(batches("--batch-size", "30", FOREBAY_DROP_LAST="true")) == 1
    assert len(batches("--batch-size", "30", FOREBAY_DROP_LAST="false")) == 2
    wrong = run("run", script, variables={"FOREBAY_BATCH_SIZE": "many"})
    assert wrong.returncode == 2 and "'many' for '--batch-size" in wrong.stderr, wrong.stderr
    with Process("serve", script, variables={"FOREBAY_INSECURE": "yes", "FOREBAY_NO_WORKER": "0"}) as server:
        assert server.started["pipelines"] == ["train"]


def test_the_port_that_kubernetes_names_is_no_port(script: Path):
    # Kubernetes sets this for a service called "forebay".
    command = [binary(), "serve", str(script), "--metrics-port", "0", "--output", "json"]
    variables = environment() | {"FOREBAY_PORT": "tcp://10.96.0.7:7070", "FOREBAY_HOST": "127.0.0.1"}
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        # It takes the default port, or says that another process has it.
        line = server.stdout.readline() or server.stderr.readline()
        server.terminate()
        assert "7070" in line and "invalid" not in line, line


def test_exit_codes(script: Path, tmp_path: Path):
    assert run("serve", script, "--port", "many").returncode == 2
    assert run("run", tmp_path / "missing.sql").returncode == 2
    assert run("run").returncode == 2
    assert run("run", "--connect", "grpc://127.0.0.1:1", "--retry-for", "0").returncode == 6
    (tmp_path / "tokens").write_text("a-token-for-these-tests\n")
    with Server(script, "--token-file", str(tmp_path / "tokens")) as server:
        assert run("run", "--connect", server.uri).returncode == 3
        assert run("serve", script, "--port", str(server.port)).returncode == 5
    (tmp_path / "clicks.csv").write_text('id\n"1\n')
    assert run("run", script).returncode == 4
    assert "Exit codes:" in run("--help").stdout


def test_ctrl_c_of_a_reader_has_the_code_of_an_interrupt(script: Path):
    command = [binary(), "run", str(script), "--epochs", "1000000", "--output", "json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment(), text=True, **pipes) as reader:
        reader.stdout.readline()
        reader.send_signal(signal.SIGINT)
        drained = threading.Thread(target=reader.stdout.read)
        drained.start()
        assert reader.wait(PATIENCE_SECONDS) == 130
        assert "resume with --from" in reader.stderr.read()
        drained.join()


def write_config(folder: Path, text: str) -> str:
    (folder / "forebay.toml").write_text(text)
    return str(folder / "forebay.toml")


def test_a_configuration_file_sets_what_flags_and_variables_do_not(script: Path, tmp_path: Path):
    config = write_config(tmp_path, 'batch-size = 20\nlog = "info"\n[run]\nepochs = 2\n[serve]\nport = 0\n')

    def batches(*arguments: str, **variables: str) -> int:
        ended = run("run", script, "--output", "json", *arguments, variables=variables)
        assert ended.returncode == 0, ended.stderr
        return len(ended.stdout.splitlines()) - 1

    assert batches("--config", config) == 4
    assert batches(FOREBAY_CONFIG=config) == 4
    assert batches("--config", config, "--batch-size", "40") == 2
    assert batches("--config", config, FOREBAY_BATCH_SIZE="10") == 8
    assert batches("--config", config, "--batch-size", "40", FOREBAY_BATCH_SIZE="10") == 2
    # A table of another command does not count, and a table has precedence.
    config = write_config(tmp_path, "batch-size = 20\n[run]\nbatch-size = 40\n[serve]\nno-worker = true\n")
    assert batches("--config", config) == 1


def test_a_configuration_file_serves(script: Path, tmp_path: Path):
    common = 'host = "127.0.0.1"\nmemory-limit = "64MiB"\ninsecure = true\nno-local-socket = false\n'
    text = common + "[serve]\nmetrics-port = 0\n"
    config = write_config(tmp_path, text)
    with Process("--config", config, "serve", script) as server:
        until("readiness", lambda: get(server, "/readyz") == (200, "ok\n"))
        config = write_config(tmp_path, f'dispatcher = ["{server.uri}"]\nmetrics-port = 0\n')
        with Process("worker", "--config", config) as worker:
            until("readiness", lambda: get(worker, "/readyz") == (200, "ok\n"))


@pytest.mark.parametrize(
    ("text", "phrases"),
    [
        ("port = 1\nmemory-limt = '1GiB'\n", ["line 2 of", 'sets "memory-limt"', 'did you mean "memory-limit"?']),
        ("\n[serve]\nconect = 'x'\n", ["line 3 of", "of [serve]"]),
        ("[server]\nport = 1\n", ["line 1 of", 'sets "server"', "hint: "]),
        ("port = \n", ["line 1 of", "is not TOML"]),
        ("insecure = 'perhaps'\n", ["line 1 of", 'sets "insecure" to "perhaps"', "write true or false"]),
        ("config = 'other.toml'\n", ['sets "config"', "which is no option"]),
        ("# the port\n\n[serve]\nport = 'many'\n", ["invalid value 'many' for '--port", "The value is in line 4 of"]),
        ("tls-cert = 'a.pem'\n", ["--tls-key"]),
        ("host = { a = 1 }\n", ["line 1 of", "no word, number or list"]),
    ],
)
def test_a_wrong_configuration_file_is_refused_with_the_line(script: Path, tmp_path: Path, text, phrases):
    ended = run("serve", script, "--config", write_config(tmp_path, text))
    assert ended.returncode == 2
    assert all(phrase in ended.stderr for phrase in phrases), ended.stderr


def test_a_missing_configuration_file_is_refused(script: Path, tmp_path: Path):
    ended = run("serve", script, "--config", tmp_path / "none.toml")
    assert ended.returncode == 2 and "none.toml" in ended.stderr and "hint: check the path in --config" in ended.stderr
