"""A run over two real sshd on this machine, each a host with a home of its own."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from processes import has_ended, said_through

if TYPE_CHECKING:
    from conftest import Hosts

_PATH = f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin"
PROGRAMS = {name: shutil.which(name, path=_PATH) for name in ("sshd", "ssh", "ssh-keygen")}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not all(PROGRAMS.values()), reason="there is no OpenSSH server here"),
]
SSHD = """
ListenAddress 127.0.0.1:{port}
HostKey {keys}/host
AuthorizedKeysFile {keys}/user.pub
PidFile none
UsePAM no
StrictModes no
SetEnv HOME={home} GPUENERGY_STATE={home}/state GPUENERGY_CACHE={cache} {names}
"""
SSH = """
Host {name}
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentityFile {keys}/user
  IdentitiesOnly yes
  UserKnownHostsFile {keys}/known
"""
Run = Callable[..., pytest.RunResult]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@pytest.fixture
def real_hosts(
    hosts: Hosts, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Hosts]:
    """The hosts h1 and h2; h3 has another key than the one that is known."""
    if os.getuid() == 0 and not Path("/run/sshd").is_dir():
        pytest.skip("sshd of root needs the folder /run/sshd")
    keys = tmp_path_factory.mktemp("keys")
    for name in ("host", "user"):
        words = [PROGRAMS["ssh-keygen"], "-q", "-t", "ed25519", "-N", "", "-f", keys / name]
        subprocess.run(list(map(str, words)), check=True)
    known, config = [], []
    servers = []
    for name in ("h1", "h2"):
        hosts.add(name)
        home = hosts.folder / name
        names = f"GPUENERGY_CAP_WRITES=deny GPUENERGY_EMULATED_HOST={name}"
        words = [PROGRAMS["sshd"], "-D", "-e", "-f", keys / f"{name}.conf"]
        for _ in range(5):  # another process may have taken the port meanwhile
            port = free_port()
            given = {"port": port, "keys": keys, "home": home, "cache": hosts.cache, "names": names}
            (keys / f"{name}.conf").write_text(SSHD.format(**given))
            server = subprocess.Popen(list(map(str, words)), stderr=subprocess.PIPE, text=True)
            servers.append(server)
            assert server.stderr is not None
            line = server.stderr.readline()
            if "listening" in line:
                break
        assert "listening" in line, line
        key = " ".join((keys / "host.pub").read_text().split()[:2])
        known.append(f"[127.0.0.1]:{port} {key}\n")
        config.append(SSH.format(name=name, port=port, user=getpass.getuser(), keys=keys))
    (keys / "known").write_text("".join(known))
    config.append(config[0].replace("Host h1", "Host h3").replace("/known", "/none"))
    (keys / "config").write_text("".join(config))
    program = tmp_path_factory.mktemp("real") / "ssh"
    program.write_text(f'#!/bin/sh\nexec {PROGRAMS["ssh"]} -F {keys}/config "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    yield hosts
    for server in servers:
        server.terminate()
        server.communicate()


def test_items_are_measured_over_connections_of_ssh(real_hosts, run_fleet):
    result = run_fleet(real_hosts.text("h1", "h2", "h3"), "--powercap", "1,3")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        [
            "fleet: ssh:h1:*: 2 workers: h1 (1), h2 (1)",
            "fleet: left out: h3: Host key verification failed: connect once with ssh *",
        ]
    )
    kept = [json.loads(line) for name in ("h1", "h2") for line in real_hosts.measured(name)]
    assert sorted(one["power_limit_w"] for one in kept) == [200, 450]


ITEMS = """
import os, signal
import pytest
from pathlib import Path

HOME = Path(os.environ["HOME"])

@pytest.mark.parametrize("number", range(2))
def test_item(number, powercap):
    if not (HOME.parent / "once").exists():
        (HOME.parent / "once").touch()
        (HOME.parent / "fifo").write_text(f"{os.getpid()} {os.getppid()} {HOME.name}")
        signal.pause()
"""


def test_a_cut_connection_of_ssh_leaves_no_limit_and_loses_no_item(real_hosts, run_fleet):
    for folder in (real_hosts.project, *real_hosts.folder.glob("h*/project")):
        (folder / "test_scale.py").unlink()
        (folder / "test_item.py").write_text(ITEMS)
    os.mkfifo(fifo := real_hosts.folder / "fifo")
    seen: list[object] = []

    def cut() -> None:
        """Stop the process of sshd through which everything goes, both ways."""
        worker, server, name = said_through(fifo).split()
        os.kill(int(server), signal.SIGSTOP)
        try:
            seen.append(has_ended(int(worker)))
            (state,) = (real_hosts.folder / name / "state" / "emulated").glob("GPU-*.json")
            seen.append(json.loads(state.read_text())["limit_mw"])
        finally:
            seen.append(int(server))

    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        result = run_fleet(f"{real_hosts.text('h1', 'h2')} silence=2", "--powercap", "1")
    finally:
        cutter.join()
        os.kill(int(str(seen.pop())), signal.SIGKILL)
    assert seen == [True, 700_000]
    result.stdout.fnmatch_lines(["*node down: h? was lost: it has not answered for 10 s."])
    result.assert_outcomes(passed=2)
