"""Downloads RocketMQ's jars and compiles the Java programs of the tests, once per content of the sources.

    <user cache>/raymq/compat/jars-<hash of pom.xml>/<profile>/*.jar
    <user cache>/raymq/compat/classes-<hash of pom.xml and sources>/<profile>/*.class
    <user cache>/raymq/compat/node-<hash of package.json>/node_modules
    <user cache>/raymq/compat/go-<hash of go.mod and sources>/program

A folder is renamed into place when it is complete, so an interrupted build leaves no folder under these
names.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
POM = HERE / "pom.xml"
SOURCES = HERE / "java"

ROCKETMQ = "rocketmq-5.3.3"
CLIENT = "client-5.3.3"
ROCKETMQ_5_5 = "rocketmq-5.5.0"
CLIENT_5_5 = "client-5.5.0"
OLD_CLIENT = "client-4.9.8"
# Source folders compiled for each Maven profile. Client programs run with only the client jars, as for users.
PROGRAMS = {
    ROCKETMQ: ("common", "store", "tools"),
    CLIENT: ("common", "client"),
    ROCKETMQ_5_5: ("common", "tools"),
    CLIENT_5_5: ("common", "client"),
    OLD_CLIENT: ("common", "client"),
}


@dataclass(frozen=True)
class Release:
    """Maven profiles of a RocketMQ release; `server` has nameserver, broker, store and mqadmin."""

    server: str
    client: str


RELEASES = {"5.3.3": Release(ROCKETMQ, CLIENT), "5.5.0": Release(ROCKETMQ_5_5, CLIENT_5_5)}

RESOLVE_TIMEOUT_S = 600
COMPILE_TIMEOUT_S = 120


class JavaNotFound(Exception):
    """This machine has no JDK or no Maven."""


class NodeNotFound(Exception):
    """This machine has no Node.js or no npm."""


class GoNotFound(Exception):
    """This machine has no Go."""


class BuildFailed(Exception):
    """Maven or javac failed; the message has the end of its output."""


@dataclass(frozen=True)
class JavaKit:
    """A JDK and the class path of each Maven profile."""

    java: Path
    jars: Path
    classes: Path

    def class_path(self, profile: str) -> str:
        return f"{self.classes / profile}{os.pathsep}{self.jars / profile}/*"

    def command(
        self, main_class: str, *arguments: str, home: Path, profile: str = ROCKETMQ, jvm: Sequence[str] = ()
    ) -> list[str]:
        """Return the command line that runs `main_class` with the jars of `profile`.

        `home` is used as user.home and for temporary files, because netty and mqadmin leave files there.
        """
        temporary = home / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        own = (f"-Duser.home={home}", f"-Djava.io.tmpdir={temporary}")
        return [str(self.java), *own, *jvm, "-cp", self.class_path(profile), main_class, *arguments]


def java_kit() -> JavaKit:
    """Return the kit; download and compile what is not cached.

    Raises:
        JavaNotFound: There is no JDK, or there is no Maven and the jars are not cached.
        BuildFailed: Maven or javac failed.
    """
    java, javac = java_program("java"), java_program("javac")
    jars = jars_of(POM, tuple(PROGRAMS))
    cache = _cache_root()
    class_key = _content_key(
        [POM, *_sources(*{folder for folders in PROGRAMS.values() for folder in folders})]
    )
    kit = JavaKit(java, jars, cache / f"classes-{class_key}")
    with _locked(cache / "lock"):
        _build_once(kit.classes, lambda into: _compile(javac, kit.jars, into))
    return kit


def jars_of(pom: Path, profiles: Sequence[str]) -> Path:
    """Return the cached folder with the jars of each profile of `pom`; download what is not cached.

    Raises:
        JavaNotFound: There is no Maven, and the jars are not cached.
        BuildFailed: Maven failed.
    """
    cache = _cache_root()
    cache.mkdir(parents=True, exist_ok=True)
    jars = cache / f"jars-{_content_key([pom])}"
    with _locked(cache / "lock"):
        _build_once(jars, lambda into: _resolve_jars(pom, profiles, into))
    return jars


def node_modules_of(package: Path) -> Path:
    """Return the cached folder `node_modules` of a package.json; download what is not cached.

    Raises:
        NodeNotFound: There is no Node.js or no npm.
        BuildFailed: npm failed.
    """
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise NodeNotFound("node or npm is not on the PATH: install Node.js 18 or later")
    install = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts"]

    def build(into: Path) -> None:
        shutil.copy(package, into)
        _run([*install, "--prefix", str(into)], RESOLVE_TIMEOUT_S)

    cache = _cache_root()
    cache.mkdir(parents=True, exist_ok=True)
    modules = cache / f"node-{_content_key([package])}"
    with _locked(cache / "lock"):
        _build_once(modules, build)
    return modules / "node_modules"


def go_program_of(folder: Path) -> Path:
    """Return the cached program of a folder with go.mod and sources; build what is not cached.

    Raises:
        GoNotFound: There is no Go.
        BuildFailed: Go failed.
    """
    go = shutil.which("go")
    if go is None:
        raise GoNotFound("go is not on the PATH: install Go 1.23 or later")

    def build(into: Path) -> None:
        for each in folder.iterdir():
            shutil.copy(each, into)
        _run([go, "-C", str(into), "mod", "tidy"], RESOLVE_TIMEOUT_S)
        _run([go, "-C", str(into), "build", "-o", "program"], RESOLVE_TIMEOUT_S)

    cache = _cache_root()
    cache.mkdir(parents=True, exist_ok=True)
    built = cache / f"go-{_content_key(sorted(folder.iterdir()))}"
    with _locked(cache / "lock"):
        _build_once(built, build)
    return built / "program"


def _resolve_jars(pom: Path, profiles: Iterable[str], into: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise JavaNotFound("Maven (mvn) is not on the PATH: install it to download the jars")
    for profile in profiles:
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={into / profile}"]
        _run([maven, "-B", "-q", "-f", str(pom), "-P", profile, *goal], RESOLVE_TIMEOUT_S)


def _compile(javac: Path, jars: Path, into: Path) -> None:
    for profile, folders in PROGRAMS.items():
        sources = [str(path) for path in _sources(*folders)]
        options = ["-encoding", "UTF-8", "-nowarn", "-d", str(into / profile), "-cp", f"{jars / profile}/*"]
        _run([str(javac), *options, *sources], COMPILE_TIMEOUT_S)


def _run(command: Sequence[str], timeout_s: float) -> None:
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s, check=False
    )
    if done.returncode != 0:
        raise BuildFailed(
            f"{Path(command[0]).name} failed with exit code {done.returncode}:\n{done.stdout[-4000:]}"
        )


def java_program(name: str) -> Path:
    """Return the path of a program of the JDK. Raises JavaNotFound."""
    home = os.environ.get("JAVA_HOME")
    if home and (program := Path(home) / "bin" / name).is_file():
        return program
    found = shutil.which(name)
    if found is None:
        raise JavaNotFound(f"{name} is neither in $JAVA_HOME/bin nor on the PATH: install JDK 17")
    return Path(found)


def _sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (SOURCES / folder).rglob("*.java"))


def _cache_root() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "raymq" / "compat"


def _content_key(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _build_once(target: Path, build: Callable[[Path], None]) -> None:
    if target.exists():
        return
    unfinished = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    try:
        build(unfinished)
        unfinished.rename(target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock the cache during a build, so that two test runs do not build the same folder."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
