"""Choice of the Ray session, the head record, ports and environment. No Ray is started."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cluster.control.session import ray_head, ray_session
from cluster.control.session.environment import (
    AUTH_MODE_ENV,
    JAVA_OPTIONS,
    TOKEN_PATH_ENV,
    EnvironmentInvalid,
    java_home,
    prepare_to_import_ray,
    ray_environment,
)
from cluster.control.session.ray_head import (
    WORKER_PORTS,
    HeadFailed,
    HeadRecord,
    read_record,
    start_command,
    stop_head,
    worker_ports,
    write_record,
)
from cluster.control.session.ray_session import SessionFailed, SessionMode, Way, choose_way
from cluster.control.topology.topology import Topology

REPO = Path(__file__).parents[4]


def topology(**ray: object) -> Topology:
    return Topology.model_validate({"brokers": [{"name": "b"}], "ray": ray})


@pytest.fixture
def no_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the (missing) file that would contain the address of a Ray running on this machine."""
    monkeypatch.setattr(ray_head, "CURRENT_CLUSTER", tmp_path / "ray_current_cluster")
    return tmp_path / "ray_current_cluster"


@pytest.fixture
def listener() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_choose_way_starts_ray_if_none_is_running(no_ray: Path, tmp_path: Path) -> None:
    assert choose_way(topology(), tmp_path, {}) == Way(SessionMode.STARTED)
    assert choose_way(topology(), tmp_path, {}, embedded=True) == Way(SessionMode.EMBEDDED)
    no_ray.write_text("127.0.0.1:1")
    assert choose_way(topology(), tmp_path, {}) == Way(SessionMode.STARTED)


def test_choose_way_attaches_to_running_ray_unless_new_is_set(
    no_ray: Path, listener: str, tmp_path: Path
) -> None:
    no_ray.write_text(listener)
    assert choose_way(topology(), tmp_path, {}) == Way(SessionMode.ATTACHED, listener)
    assert choose_way(topology(address="new"), tmp_path, {}) == Way(SessionMode.STARTED)


@pytest.mark.usefixtures("no_ray")
def test_topology_address_overrides_ray_address_variable(tmp_path: Path) -> None:
    environment = {"RAY_ADDRESS": "10.0.0.1:6379"}
    assert choose_way(topology(), tmp_path, environment) == Way(SessionMode.ATTACHED, "10.0.0.1:6379")
    assert choose_way(topology(address="10.0.0.2:1"), tmp_path, environment) == Way(
        SessionMode.ATTACHED, "10.0.0.2:1"
    )
    assert choose_way(topology(address="new"), tmp_path, environment) == Way(SessionMode.STARTED)


def test_submitted_job_uses_its_own_ray_cluster(tmp_path: Path) -> None:
    assert choose_way(topology(address="new"), tmp_path, {ray_session.JOB_ENV: "{}"}) == Way(
        SessionMode.SUBMITTED
    )


def test_head_record_is_ignored_and_deleted_if_no_process_runs(
    no_ray: Path, listener: str, tmp_path: Path
) -> None:
    assert read_record(tmp_path) is None
    write_record(tmp_path, HeadRecord("unused-mark", listener, "http://127.0.0.1:8265"))
    no_ray.write_text(listener)
    # A process listens at the address, but no process has the mark: it is not our head.
    assert choose_way(topology(address="new"), tmp_path, {}) == Way(SessionMode.STARTED)
    assert stop_head(tmp_path) == 0
    assert read_record(tmp_path) is None
    assert not no_ray.exists()


def test_damaged_head_record_raises_head_failed(tmp_path: Path) -> None:
    (tmp_path / "ray.json").write_text("{")
    with pytest.raises(HeadFailed, match=r"ray\.json is damaged"):
        read_record(tmp_path)


def test_worker_ports_avoid_the_ports_of_the_topology() -> None:
    command = start_command(topology(num_cpus=3), 6379, 8265)
    assert "--min-worker-port=20000" in command
    assert "--num-cpus=3" in command
    taken = Topology.model_validate({"brokers": [{"name": "b", "listen_port": 20911}]})
    assert "--min-worker-port=12000" in start_command(taken, 6379, 8265)


def test_worker_ports_avoid_the_ports_of_ray() -> None:
    """`ray start` refuses a head if its port or the agent's port 52365 is in the range of the workers."""
    assert "--min-worker-port=12000" in start_command(topology(), 25_000, 8265)
    for first, last in WORKER_PORTS:
        assert last < 32_768 or first > 60_999, "overlaps Linux's ephemeral ports"
        assert not first <= 52365 <= last


def test_topology_without_free_worker_ports_raises_head_failed() -> None:
    with pytest.raises(HeadFailed, match=r"6379, 12911, 20911, 63000: leave one range free"):
        worker_ports([20911, 12911, 63000, 6379, 0])


def test_ray_environment_has_this_python_and_java_on_its_path() -> None:
    environment = ray_environment({"PATH": "/usr/bin"})
    python, java, rest = environment["PATH"].split(os.pathsep)
    assert (Path(python) / "python").exists()
    assert (Path(java) / "java").exists()
    assert rest == "/usr/bin"
    assert environment["JDK_JAVA_OPTIONS"] == JAVA_OPTIONS
    assert environment["PYSPARK_PYTHON"].startswith(python)
    assert environment["RAY_worker_niceness"] == "0"
    assert ray_environment(environment)["JDK_JAVA_OPTIONS"] == JAVA_OPTIONS


def test_java_home_variable_takes_precedence(tmp_path: Path) -> None:
    assert java_home({"JAVA_HOME": str(tmp_path)}) is None
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("")
    assert java_home({"JAVA_HOME": str(tmp_path)}) == tmp_path


def test_missing_token_is_created_readable_by_its_owner_only(tmp_path: Path) -> None:
    file = tmp_path / "inner" / "token"
    environment = {TOKEN_PATH_ENV: str(file)}
    prepare_to_import_ray(environment, starts=False)
    assert AUTH_MODE_ENV not in environment
    prepare_to_import_ray(environment, starts=True)
    assert environment[AUTH_MODE_ENV] == "token"
    assert file.stat().st_mode & 0o777 == 0o600
    token = file.read_text()
    prepare_to_import_ray({TOKEN_PATH_ENV: str(file)}, starts=True)
    assert file.read_text() == token


def test_given_auth_mode_is_kept_without_a_token(tmp_path: Path) -> None:
    environment = {TOKEN_PATH_ENV: str(tmp_path / "token"), AUTH_MODE_ENV: "disabled"}
    prepare_to_import_ray(environment, starts=True)
    assert environment[AUTH_MODE_ENV] == "disabled"
    assert not (tmp_path / "token").exists()


def test_unwritable_token_error_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentInvalid, match="set RAY_AUTH_TOKEN_PATH"):
        prepare_to_import_ray({TOKEN_PATH_ENV: str(tmp_path / "file" / "token")}, starts=True)


def test_runtime_environment_matches_project_dependencies() -> None:
    import tomllib

    wanted = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["dependencies"]
    given = yaml.safe_load((REPO / "configs" / "runtime_env.yaml").read_text())["uv"]
    assert set(given) <= set(wanted)


@pytest.mark.parametrize("late", [1, 2], ids=["once", "twice"])
def test_embedded_ray_start_is_retried_once_after_a_timeout(
    late: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray
    from ray._private import worker

    tries: list[object] = []

    def init(**options: object) -> None:
        tries.append(options["namespace"])
        if len(tries) <= late:
            raise Exception("The current node timed out during startup.")  # noqa: TRY002 - as Ray does

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray_session, "prepare_to_import_ray", lambda environment, *, starts: None)
    monkeypatch.setattr(ray_session, "ray_environment", lambda environment: {})
    monkeypatch.setattr(worker, "_worker_logs_enabled", True)

    def connect() -> None:
        ray_session.connect(topology(), tmp_path, Way(SessionMode.EMBEDDED))

    if late == 1:
        connect()
    else:
        with pytest.raises(SessionFailed, match=r"timed out during startup.*\n.*less busy"):
            connect()
    assert len(tries) == 2


def test_workers_do_not_use_uv_run_if_ray_was_imported_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray
    from ray._private import ray_constants, worker

    runs_workers_by_uv: list[bool] = []

    def init(**options: object) -> None:
        runs_workers_by_uv.append(ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV)

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray_constants, "RAY_ENABLE_UV_RUN_RUNTIME_ENV", True)  # as Ray has it by default
    monkeypatch.setattr(worker, "_worker_logs_enabled", True)
    monkeypatch.delenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", raising=False)
    monkeypatch.setenv(TOKEN_PATH_ENV, str(tmp_path / "none"))
    ray_session.connect(topology(), tmp_path, Way(SessionMode.ATTACHED, "127.0.0.1:6379"))
    assert runs_workers_by_uv == [False]


@pytest.mark.parametrize("variables", [{}, {"TMPDIR": "b"}, {"TMPDIR": "b", "RAY_TMPDIR": "a"}])
def test_temporary_directory_is_the_one_that_ray_uses(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    from ray._common.utils import get_default_system_temp_dir

    for name in ("TMPDIR", "RAY_TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert ray_head.temporary_directory(os.environ) == Path(get_default_system_temp_dir())
