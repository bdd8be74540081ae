"""Hosts of a benchmark: network, PID, mount, IPC and UTS namespaces with an sshd each, on a bridge
whose rate can be limited, or which the last host reaches by a long cable. Needs root. Standard
library only.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import harness

SUBNET = "10.78.0."
START_S = 20.0
# UCX takes the network's devices from there, which else are those of the machine.
OWN_DEVICES = ("mount -t sysfs sysfs /mnt && mount --bind /mnt/class/net /sys/class/net && "
               "umount -l /mnt")


def _sh(line: str) -> None:
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    if done.returncode:
        raise harness.Missing(f"{line}\n{done.stderr.strip()}")


class Host:
    """One of them: `inside` makes a command one that runs there."""

    def __init__(self, name: str, script: str, ready: str) -> None:
        self.name = name
        self.address = ""
        self.process = subprocess.Popen(
            ["unshare", "--net", "--pid", "--mount", "--ipc", "--uts", "--fork", "--kill-child",
             "--mount-proc", "sh", "-c", f"hostname {name} && ip link set lo up && "
             f"mount -t tmpfs tmpfs /dev/shm && {OWN_DEVICES} && {script}"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        self._await(ready)
        [self.first] = [process.pid for process in harness.all_processes().values()
                        if process.parent == self.process.pid]

    def _await(self, ready: str) -> None:
        said = b""
        deadline = time.monotonic() + START_S
        while ready.encode() not in said:
            if not select.select([self.process.stdout], [], [], deadline - time.monotonic())[0]:
                raise harness.Missing(f"host {self.name} did not start: {said.decode()}")
            more = os.read(self.process.stdout.fileno(), 4096)
            if not more:
                raise harness.Missing(f"host {self.name} has ended: {said.decode()}")
            said += more

    def inside(self, command: Sequence[str]) -> list[str]:
        """The command, to be run on this host."""
        return ["nsenter", "-t", str(self.first), "-n", "-p", "-m", "-i", "-u", "--", *command]

    def end(self) -> None:
        """Kills all that runs there."""
        self.process.kill()
        self.process.wait()


class Hosts:
    """A home, from which runs are launched, and hosts that it reaches by ssh. A context."""

    def __init__(self, names: Sequence[str], rate: str = "",
                 cable: Sequence[str] | None = None) -> None:
        """`rate`: of each host's link, each way, as tc says it; empty: as fast as the machine.
        `cable`: flags of long_cable, between the last host and all others."""
        if os.geteuid() != 0:
            raise harness.Missing("only root makes network namespaces")
        for program in ("unshare", "nsenter", "ip", "tc", "ssh", "ssh-keygen"):
            if not shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin"):
                raise harness.Missing(f"{program} is not installed")
        self.folder = Path(tempfile.mkdtemp(prefix="troupe-hosts-"))
        self.hosts: list[Host] = []
        self.rate = rate
        self.cable = cable
        self.cables: list[subprocess.Popen[bytes]] = []
        try:
            self._start(names)
        except BaseException:
            self.end()
            raise

    def _start(self, names: Sequence[str]) -> None:
        for key in ("host_key", "user_key"):
            _sh(f"ssh-keygen -q -t ed25519 -N '' -C '' -f {self.folder / key}")
        shutil.copy(self.folder / "user_key.pub", self.folder / "authorized_keys")
        (self.folder / "sshd_config").write_text(
            f"HostKey {self.folder / 'host_key'}\nAuthorizedKeysFile "
            f"{self.folder / 'authorized_keys'}\nStrictModes no\nUsePAM no\nPidFile none\n"
            "PermitRootLogin prohibit-password\n")
        self.home = self._host("home", "ip link add br0 type bridge && ip link set br0 up && "
                               f"ip addr add {SUBNET}1/24 dev br0 && echo is up && "
                               "exec sleep infinity", "is up")
        self.home.address = f"{SUBNET}1"
        for place, name in enumerate(names, start=2):
            host = self._host(name, "mount -t tmpfs tmpfs /run && mkdir -p /run/sshd && exec "
                              f"/usr/sbin/sshd -D -e -f {self.folder / 'sshd_config'}",
                              "Server listening on 0.0.0.0")
            self._connect(host, f"{SUBNET}{place}", self.cable if name == names[-1] else None)
        key = (self.folder / "host_key.pub").read_text()
        (self.folder / "known_hosts").write_text(
            "".join(f"{host.address} {key}" for host in self.hosts[1:]))
        self.ssh_config.write_text(
            f"IdentityFile {self.folder / 'user_key'}\nIdentitiesOnly yes\nUserKnownHostsFile "
            f"{self.folder / 'known_hosts'}\nGlobalKnownHostsFile none\n")

    def _host(self, name: str, script: str, ready: str) -> Host:
        host = Host(name, script, ready)
        self.hosts.append(host)
        return host

    def _lay(self, host: Host, flags: Sequence[str]) -> None:
        cable = subprocess.Popen(
            [harness.require_program("long_cable"), "--end", f"{self.home.first}:to-{host.name}",
             "--end", f"{host.first}:eth0", *flags], stdout=subprocess.PIPE)
        self.cables.append(cable)
        if cable.stdout.readline() != b"is up\n":
            raise harness.Missing(f"the cable to {host.name} has ended")

    def _connect(self, host: Host, address: str, cable: Sequence[str] | None) -> None:
        host.address = address
        home, there = (f"nsenter -t {each.first} -n" for each in (self.home, host))
        if cable is None:
            _sh(f"{home} ip link add to-{host.name} type veth peer name eth0 netns {host.first}")
        else:
            self._lay(host, cable)
        _sh(f"{home} ip link set to-{host.name} master br0 up")
        _sh(f"{there} ip addr add {address}/24 dev eth0")
        _sh(f"{there} ip link set eth0 up")
        if self.rate:
            limit = f"root tbf rate {self.rate} burst 4mb latency 20ms"
            _sh(f"{home} tc qdisc add dev to-{host.name} {limit}")
            _sh(f"{there} tc qdisc add dev eth0 {limit}")

    @property
    def ssh_config(self) -> Path:
        """What ssh is told with -F."""
        return self.folder / "ssh_config"

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Ends the hosts and all that runs there."""
        for host in self.hosts:
            with contextlib.suppress(OSError):
                host.end()
        for cable in self.cables:
            cable.kill()
            cable.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
