"""gpuenergy ab where there is no git: the revisions are folders one/ and two/ beside this file."""

import contextlib
import hashlib
import sys
from pathlib import Path

from pytest_gpuenergy import cli
from pytest_gpuenergy.ab import revisions
from pytest_gpuenergy.support import worktrees

HERE = Path(__file__).parent
NAMES = {hashlib.sha1(name.encode()).hexdigest(): name for name in ("one", "two")}


@contextlib.contextmanager
def tree(folder, commit, place):
    yield HERE / NAMES[commit]


revisions.resolve_commit = lambda _folder, name: hashlib.sha1(name.encode()).hexdigest()
worktrees.worktree = tree

raise SystemExit(cli.main(["ab", *sys.argv[1:]]))
