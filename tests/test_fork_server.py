"""The fork server: started early, undisturbed by Ctrl-C, started again when it has ended."""

from __future__ import annotations

import json
import pickle
import sys
from typing import Any

import cloudpickle
import pytest
from processes import python

from sharedds.loader import build_loader

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fork server is for Linux")

_SCRIPT = """
import json, os, signal, threading, time
from multiprocessing.forkserver import _forkserver as server
from sharedds.loader import build_loader

facts = {"before": server._forkserver_pid}

class Variables:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return os.environ.get("SET_LATE"), os.environ.get("TAKEN_AWAY"), os.getpid()

def loader():
    return build_loader(Variables(), num_workers=1, timeout=60, start_method="forkserver",
                        collate_fn=lambda samples: samples[0])

os.environ["TAKEN_AWAY"] = "1"
first = loader()
facts["built"] = pid = server._forkserver_pid
for _ in range(20):  # while it starts, and while it imports
    os.kill(pid, signal.SIGINT)
    time.sleep(0.02)
os.environ["SET_LATE"] = "1"
del os.environ["TAKEN_AWAY"]
facts["seen"] = list(first)[0][:2]
facts["interrupted"] = server._forkserver_pid

# It ends with a request in its hands.
os.kill(pid, signal.SIGSTOP)
threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()
facts["after_kill"] = len(list(loader()))
facts["new"] = server._forkserver_pid

child = os.fork()
if child == 0:
    code = 1
    try:
        code = 0 if len(list(loader())) == 4 else 2
    finally:
        os._exit(code)
facts["child"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
facts["after_child"] = len(list(loader()))
facts["kept"] = server._forkserver_pid
print(json.dumps(facts))
"""


@pytest.fixture(scope="module")
def facts() -> Any:
    """What a script found that treats its fork server badly."""
    return json.loads(python("import warnings; warnings.simplefilter('ignore')" + _SCRIPT).stdout)


def test_the_server_is_started_when_a_loader_is_built(facts: Any) -> None:
    """So that it imports the libraries while the trainer prepares something else."""
    assert facts["before"] is None
    assert facts["built"] is not None


def test_ctrl_c_does_not_end_a_server_that_imports(facts: Any) -> None:
    """Python protects its server only once it is done with that."""
    assert facts["interrupted"] == facts["built"]


def test_workers_have_the_environment_of_now(facts: Any) -> None:
    """Not that of the start of the server; what was taken away is gone."""
    assert facts["seen"] == ["1", None]


def test_a_server_that_ends_with_a_request_in_hand_is_started_again(facts: Any) -> None:
    """The user notices nothing."""
    assert facts["after_kill"] == 4
    assert facts["new"] not in (None, facts["built"])


def test_a_forked_process_starts_a_server_of_its_own(facts: Any) -> None:
    """That of its parent is no child of it, and keeps serving the parent."""
    assert facts["child"] == 0
    assert facts["after_child"] == 4
    assert facts["kept"] == facts["new"]


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 1, "engine": "thread"}])
def test_a_loader_that_was_iterated_can_be_sent(options: dict[str, Any]) -> None:
    """A dataset may hold one; what is under way stays here, and where it stands goes along."""
    loader = build_loader(range(6), batch_size=2, **options)  # type: ignore[arg-type]
    batches = iter(loader)
    next(batches)
    with pytest.raises(TypeError, match="cannot pickle"):  # a part of what is under way
        cloudpickle.dumps(loader._newest)
    copy = pickle.loads(cloudpickle.dumps(loader))
    assert copy.state_dict() == loader.state_dict()
    assert [batch.tolist() for batch in copy] == [[0, 1], [2, 3], [4, 5]]
