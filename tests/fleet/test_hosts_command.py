"""``gpuenergy hosts``: what a fleet's hosts offer, and how pytest-xdist is told of them."""

from __future__ import annotations

import json
import shlex
import subprocess
from typing import TYPE_CHECKING

import execnet
import pytest

from pytest_gpuenergy.cli import main

if TYPE_CHECKING:
    pass

EMULATED = ("--gpu-device", "emulated:h200x2")
PROCESS = '{"foreign_process":{"pid":4711}}'


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str]]:
    code = main(["hosts", *arguments])
    return code, capsys.readouterr().out.splitlines()


def test_this_hosts_gpus_are_listed_with_what_starts_a_worker(capsys):
    code, lines = listed(capsys, *EMULATED)
    assert code == 0
    assert lines[0].split()[:4] == ["host", "GPU", "model", "UUID"]
    assert [line.split()[1] for line in lines[1:3]] == ["0", "1"]
    assert all(line.endswith("200-700 W  yes       yes") for line in lines[1:3])
    specs = [execnet.XSpec(shlex.split(line)[1]) for line in lines[3:]]
    assert ["GPUENERGY_FLEET_GPU=1" in spec.python for spec in specs] == [False, True]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (PROCESS, "process 4711 is using it"),
        ('{"mig":true}', "MIG mode"),
        ('{"any":"gpu_is_lost"}', "GPU is lost"),
        ('{"power_limit":"no_permission"}', None),
    ],
    ids=["foreign process", "MIG", "lost", "no permission"],
)
def test_a_gpu_that_cannot_measure_is_listed_with_the_reason(fault, said, capsys, monkeypatch):
    monkeypatch.setenv("GPUENERGY_EMULATED_FAULTS", fault)
    code, lines = listed(capsys, "--gpu-device", "emulated", "--json")
    answer = json.loads("\n".join(lines))
    ((gpu,),) = [host["gpus"] for host in answer["hosts"]]
    assert code == (said is not None)
    assert len(answer["tx"]) == (said is None)
    assert (said or "None") in str(gpu["no_measuring"])


def test_a_host_without_a_driver_is_listed_with_the_reason(capsys, monkeypatch):
    monkeypatch.setattr("pytest_gpuenergy.fleet.probe.find_gpus", no_driver)
    code, lines = listed(capsys)
    assert code == 1
    assert lines[0].endswith("There is no driver.")


def no_driver() -> None:
    from pytest_gpuenergy.support import DeviceError

    raise DeviceError("There is no driver.")


@pytest.mark.slow
def test_hosts_behind_ssh_are_listed_in_their_order(hosts, capsys):
    hosts.add("h1", GPUENERGY_EMULATED_FAULTS=PROCESS)
    hosts.add("h2")
    fleet = hosts.text("h3", "h1", "h2").removeprefix("ssh:")
    code, lines = listed(capsys, "--ssh", fleet, "--gpu-device", "emulated")
    assert code == 0
    assert [line.split()[0] for line in lines[1:3]] == ["h1", "h2"]
    assert lines[3] == "h3: ssh: Could not resolve hostname h3."
    assert lines[4].startswith("h1, GPU 0 cannot measure: process 4711 is using it")
    (spec,) = [execnet.XSpec(shlex.split(line)[1]) for line in lines[5:]]
    question = "print(__import__('os').environ['GPUENERGY_EMULATED_HOST'])"
    answer = subprocess.run(
        [*shlex.split(spec.python), "-u", "-c", "ignored"],
        input=repr(question) + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout == "h2\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "said"),
    [
        (
            "dir=/no/such",
            "h1: /no/such cannot be entered: copy the project there, or give dir=PATH.",
        ),
        ("python=/no/such", "h1: there is no interpreter /no/such: give python=PATH of the"),
    ],
)
def test_what_a_host_lacks_is_said_with_what_to_do(word, said, hosts, capsys):
    hosts.add("h1", copy=False)
    where = word if word.startswith("dir") else f"dir={hosts.folder} {word}"
    code, (line,) = listed(capsys, "--ssh", f"h1 {where}", "--gpu-device", "emulated")
    assert code == 1
    assert line.startswith(said)


@pytest.mark.slow
def test_the_places_of_slurms_tasks_are_listed(hosts, capsys):
    hosts.add("h1", "h2")
    fleet = f"--partition=gpu x2 dir={hosts.folder / 'h1' / 'project'}"
    code, lines = listed(capsys, "--slurm", fleet, "--gpu-device", "emulated")
    assert code == 0
    assert [line.split()[0] for line in lines[1:3]] == ["h1", "h2"]
    assert all(
        line.startswith("--tx 'popen//python=srun --partition=gpu --ntasks=1 ")
        for line in lines[3:]
    )


@pytest.mark.usefixtures("no_programs")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--ssh", "a,a"), "named twice"),
        (("--gpu-device", "0"), "names a GPU of one host, but a fleet takes all"),
        (("--gpu-device", "0,1"), "names GPUs of one host, but a fleet takes all"),
        (("--gpu-device", "0,x"), "'x' is not understood: give auto"),
        (("--slurm", "-p gpu"), "srun is missing"),
        (("--ray", "HEAD"), "give ray for the cluster"),
        (("--ray", "HEAD:1 dir=x"), "begins with /"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_what_cannot_work_is_said_in_a_sentence(arguments, said, capsys):
    assert main(["hosts", *arguments]) != 0
    assert said in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("no_ray")
def test_ray_is_asked_for_where_it_is_missing(capsys):
    assert main(["hosts", "--ray"]) == 1
    assert "needs ray: pip install 'pytest-gpuenergy[ray]'" in capsys.readouterr().err
