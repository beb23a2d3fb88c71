"""Pods of a rendered chart, each in namespaces of its own, on a node; this process is a client outside.

    this process ── veth ── 192.0.2.1, node ── bridge 10.214.0.100 ─┬─ veth ── 10.214.0.n, pod
                                                                    └─ veth ── 10.214.0.n, pod

The process runs in network and mount namespaces of its own. A pod has the processes, files and volumes that
its group names, and besides its own address, which no other pod gets, those of the Services that lead to it:
10.214.1.n. The node has the ports of type NodePort. Names of Services are in a file mounted as /etc/hosts.
"""

from __future__ import annotations

import itertools
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from tests.eventually import eventually
from tests.kube.charts import Document, all_of, container_of, labels_of, named

REPO = Path(__file__).parent.parent.parent
NODE, NODE_OUTSIDE, OWN = "10.214.0.100", "192.0.2.1", "192.0.2.2"
WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")
"""Begins a command that ends with this process."""
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
ENVIRONMENT = {
    "PATH": PATH,
    "HOME": os.environ["HOME"],
    "PYTHONPATH": str(REPO),
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
}


def command(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True)


class Namespaces:
    """Namespaces of processes, mounts and the network; the end of their first process ends all others."""

    def __init__(self) -> None:
        kinds = ("--net", "--mount", "--pid", "--mount-proc")
        words = [
            *WITH_PARENT,
            "unshare",
            "--fork",
            "--kill-child",
            *kinds,
            "bash",
            "-c",
            "sleep infinity & wait",
        ]
        self._holder = psutil.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        own = Path("/proc/self/ns/net").readlink()
        self.pid = eventually(self._held, "the process in the namespaces")
        eventually(lambda: Path(f"/proc/{self.pid}/ns/net").readlink() != own, "the network namespace")
        self.run("ip", "link", "set", "lo", "up")

    def _held(self) -> int:
        return next((int(child.pid) for child in self._holder.children()), 0)

    def words(self, *words: object) -> list[str]:
        """Return the command that runs `words` in the namespaces."""
        enter = ["nsenter", "--target", str(self.pid), "--net", "--mount", "--pid"]
        return [*enter, *map(str, words)]

    def run(self, *words: object) -> None:
        command(*self.words(*words))

    def close(self) -> None:
        psutil.Process(self.pid).kill()
        self._holder.wait()


class Kube:
    """A node with the pods of a chart. `root` has the volumes, Secrets and logs of the pods."""

    def __init__(self, root: Path, documents: list[Document], secrets: dict[str, dict[str, str]]) -> None:
        self._root, self._secrets, self._numbers = root, secrets, itertools.count(1)
        self._ports: dict[int, subprocess.Popen[bytes]] = {}
        self._addresses: dict[str, str] = {}
        self._hosts = root / "hosts"
        self._hosts.touch()
        self.head = ""
        self.pods: dict[str, Pod] = {}
        command("mount", "-t", "tmpfs", "none", "/mnt")
        command("mount", "--bind", self._hosts, "/etc/hosts")
        (root / "resolv.conf").write_text("nameserver 127.0.0.1\n")  # which refuses at once
        command("mount", "--bind", root / "resolv.conf", "/etc/resolv.conf")
        self.node = Namespaces()
        command("ip", "link", "set", "lo", "up")
        command(
            "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "outside", "netns", self.node.pid
        )
        command("ip", "address", "add", f"{OWN}/24", "dev", "eth0")
        command("ip", "link", "set", "eth0", "up")
        self.node.run("ip", "address", "add", f"{NODE_OUTSIDE}/24", "dev", "outside")
        self.node.run("ip", "link", "set", "outside", "up")
        self.node.run("ip", "link", "add", "bridge", "type", "bridge")
        self.node.run("ip", "address", "add", f"{NODE}/16", "dev", "bridge")
        self.node.run("ip", "link", "set", "bridge", "up")
        self.apply(documents)

    def apply(self, documents: list[Document]) -> None:
        """Use these documents for new pods, and give each Service its address, name and port of the node."""
        self.documents = documents
        for name, service in all_of(documents, "Service").items():
            if name not in self._addresses:
                self._addresses[name] = f"10.214.1.{len(self._addresses) + 1}"
            for port in service["spec"]["ports"]:
                outside = port.get("nodePort")
                if outside and outside not in self._ports:
                    words = [sys.executable, "-m", "tests.kube.node_port", outside]
                    words += [self._addresses[name], port["targetPort"]]
                    self._ports[outside] = subprocess.Popen(
                        self.node.words(*words), cwd=REPO, env=ENVIRONMENT
                    )
        self.write_hosts()

    def write_hosts(self) -> None:
        """Write the names of the Services; that of the head has the address of its pod."""
        lines = ["127.0.0.1 localhost", f"{NODE_OUTSIDE} raymq.example.com", f"{self.head} raymq-head-svc"]
        lines += [f"{address} {name}.default.svc" for name, address in self._addresses.items()]
        self._hosts.write_text("\n".join(lines) + "\n")

    def services_of(self, labels: dict[str, str]) -> list[str]:
        """Return the addresses of the Services that lead to a pod with these labels."""
        found = all_of(self.documents, "Service").items()
        return [
            self._addresses[name]
            for name, each in found
            if each["spec"]["selector"].items() <= labels.items()
        ]

    def start(self, name: str, template: Document, labels: dict[str, str], words: Sequence[object]) -> None:
        """Start a pod, in place of a lost one of this name, on another address."""
        if name in self.pods:
            self.lose(name)
        number = next(self._numbers)
        pod = Pod(self.node, number, [f"10.214.0.{number}", *self.services_of(labels)])
        self.pods[name] = pod
        if labels.get("ray.io/node-type") == "head":
            self.head = f"10.214.0.{number}"
            self.write_hosts()
        spec = template["spec"]
        sources = {volume["name"]: self._source(volume) for volume in spec["volumes"]}
        (container,) = spec["containers"]
        for mount in container["volumeMounts"]:
            pod.mount(sources[mount["name"]], mount["mountPath"])
        pod.namespaces.run("mount", "-t", "tmpfs", "none", "/tmp")
        for each in spec.get("initContainers", ()):
            pod.namespaces.run(*each["command"])
        environment = {each["name"]: self._value(each) for each in container.get("env", ())}
        pod.start(words, environment, self._root / f"{name}-{number}.log")

    def start_ray(self, group: Document, name: str) -> None:
        """Start a pod of a group, with the command of the operator."""
        is_head = name == "headgroup"
        given = {"block": "", "object-store-memory": "100000000", **group["rayStartParams"]}
        given |= {"head": "", "dashboard-host": "0.0.0.0"} if is_head else {"address": "raymq-head-svc:6379"}
        flags = [f"--{key}={shlex.split(value)[0]}" if value else f"--{key}" for key, value in given.items()]
        # The kubelet restarts a container that ends, without what is left of its processes.
        script = f"while true; do {shlex.join(['ray', 'start', *flags])}; ray stop --force; done"
        if not is_head:  # as the operator's container wait-gcs-ready
            script = f"until curl -sf http://raymq-head-svc:8265/api/gcs_healthz; do sleep 1; done; {script}"
        words = ["bash", "-c", script]
        self.start(name, group["template"], labels_of(name), words)

    def start_launcher(self) -> None:
        template = named(self.documents, "Deployment", "raymq-launcher")["spec"]["template"]
        words = container_of({"template": template})["command"]
        self.start("launcher", template, {}, words)

    def lose(self, name: str) -> None:
        """Lose a pod and its node: its processes, its network and its address."""
        self.pods.pop(name).close()
        # As the Service leads to another pod now, and the neighbours still know the last one.
        for other in [self.node, *(pod.namespaces for pod in self.pods.values())]:
            other.run("ip", "neigh", "flush", "all")

    def log_of(self, name: str) -> str:
        """Return the output of all pods of this name."""
        return "".join(path.read_text() for path in sorted(self._root.glob(f"{name}-*.log")))

    def _value(self, variable: Document) -> str:
        """Return the value of a variable of a container."""
        if "value" in variable:
            return str(variable["value"])
        key = variable["valueFrom"]["secretKeyRef"]
        return self._secrets[key["name"]][key["key"]]

    def _source(self, volume: Document) -> Path | None:
        """Return the directory of a volume; None: a file system in memory."""
        if claim := volume.get("persistentVolumeClaim"):
            folder = self._root / "claims" / str(claim["claimName"])
            folder.mkdir(parents=True, exist_ok=True)
            return folder
        if "configMap" in volume:
            files = named(self.documents, "ConfigMap", volume["configMap"]["name"])["data"]
        elif "secret" in volume:
            files = self._secrets[volume["secret"]["secretName"]]
        else:
            return None
        folder = self._root / f"{volume['name']}-{next(self._numbers)}"
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
            (folder / name).chmod(volume.get("secret", {}).get("defaultMode", 0o644))
        return folder

    def close(self) -> None:
        for each in self._ports.values():
            each.kill()
            each.wait()
        for pod in self.pods.values():
            pod.close()
        self.node.close()


class Pod:
    """One pod. The first of its addresses is its own."""

    def __init__(self, node: Namespaces, number: int, addresses: Sequence[str]) -> None:
        self.namespaces = Namespaces()
        self._process: subprocess.Popen[bytes] | None = None
        self._environment = ENVIRONMENT
        end = f"pod-{number}"
        peer = ("peer", "name", "eth0", "netns", self.namespaces.pid)
        command("ip", "link", "add", end, "netns", node.pid, "type", "veth", *peer)
        node.run("ip", "link", "set", end, "master", "bridge", "up")
        for address in addresses:
            self.namespaces.run("ip", "address", "add", f"{address}/16", "dev", "eth0")
        self.namespaces.run("ip", "link", "set", "eth0", "up")
        self.namespaces.run("ip", "route", "add", "default", "via", NODE)

    def mount(self, source: Path | None, path: str) -> None:
        self.namespaces.run("mkdir", "-p", path)
        if source is None:
            self.namespaces.run("mount", "-t", "tmpfs", "none", path)
        else:
            self.namespaces.run("mount", "--bind", source, path)

    def start(self, words: Sequence[object], environment: dict[str, str], log: Path) -> None:
        self._environment = ENVIRONMENT | environment
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                self.namespaces.words(*words),
                cwd=REPO,
                env=self._environment,
                stdout=output,
                stderr=output,
            )

    def succeeds(self, *words: object) -> bool:
        """Return True if a command, such as a probe, succeeds in the container of the pod."""
        entered = self.namespaces.words(*words)
        return subprocess.run(entered, env=self._environment, capture_output=True).returncode == 0

    def close(self) -> None:
        self.namespaces.close()
        if self._process is not None:
            self._process.wait()
