"""Training that outlives its nodes: what survivors, leavers and newcomers converge to, and how soon they go on."""

import json
import signal
import time
import urllib.error
import urllib.request

import pytest
from elastic_runs import ElasticRun, distance
from hosts import NoHostsError, hosts


@pytest.fixture
def run(forker, tmp_path):
    made = []

    def start(**settings):
        made.append(ElasticRun(forker, tmp_path, **settings))
        return made[-1]

    yield start
    for one in made:
        one.close()


def check_end(ends, numbers):
    """All have the same members, their minimiser, and Σ_i c_i = 0."""
    for one in ends:
        assert one["members"] == sorted(numbers)
        assert distance(one, numbers) < 1e-10
        assert one["metrics"].get("sum_c", 0.0) < 1e-12


@pytest.mark.sampled(16)
@pytest.mark.parametrize("merged", [0, 1, 2, 3])
@pytest.mark.parametrize("algorithm", ["ST-GT", "LED", "K-GT", "Outer"])
def test_one_is_killed_at_a_chunk_of_an_exchange_and_comes_back(run, algorithm, merged):
    """The rest goes to its own minimiser, and after the join all go to that of all."""
    training = run(algorithm=algorithm, chunk=2)
    training.start(0, 1, 3)
    training.start(2, kill={"round": 20, "merged": merged})
    assert training.nodes[2].finish(60) == -signal.SIGKILL
    training.settle(0, 1, 3)
    training.start(2)
    training.settle(0, 1, 2, 3)
    check_end(training.end(0, 1, 2, 3), [0, 1, 2, 3])


@pytest.mark.release
def test_one_is_killed_again_and_again(run):
    """In the third round after it has joined, each time at another chunk of the exchange."""
    training = run(algorithm="ST-GT", chunk=2)
    training.start(0, 1, 2, 3)
    training.nodes[3].wait_until("round", round=3)
    training.kill(3)
    for merged in range(4):
        training.start(3, kill={"after": 2, "merged": merged})
        assert training.nodes[3].finish(60) == -signal.SIGKILL
    training.settle(0, 1, 2)
    check_end(training.end(0, 1, 2), [0, 1, 2])


def test_leaving_in_order_costs_the_others_nothing(run):
    """By opt.leave() and by SIGTERM: no round is ended alone, and nobody is called lost."""
    training = run(algorithm="LED", sleep=0.002)
    training.start(0, 1, 2)
    training.start(3, leave_at=30)
    training.start(4)
    assert training.nodes[3].finish(60) == 0
    training.nodes[4].wait_until("round", round=60)
    training.nodes[4].send(signal.SIGTERM)
    assert training.nodes[4].finish(60) == 128 + signal.SIGTERM
    training.settle(0, 1, 2)
    ends = training.end(0, 1, 2)
    check_end(ends, [0, 1, 2])
    for one in ends:
        assert [event["lost"] for event in one["events"] if event["lost"]] == []
        assert sorted(name for event in one["events"] for name in event["left"]) != []
        assert one["metrics"]["rounds_alone"] == 0


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["SIGSTOP", "hang_at", "nan_at"])
def test_one_hangs_or_is_not_finite(run, how):
    """A stopped process is found out by its heartbeats, one that hangs within the time-out; a NaN is not sent."""
    training = run(algorithm="ST-GT", timeout=5)
    training.start(0, 1, 2)
    training.start(3, **({} if how == "SIGSTOP" else {how: 30}))
    training.nodes[3].wait_until("round", round=20)
    if how == "SIGSTOP":
        training.nodes[3].send(signal.SIGSTOP)
    training.settle(0, 1, 2)
    if how == "SIGSTOP":  # it comes back with its model, and without a new process
        training.nodes[3].send(signal.SIGCONT)
        training.settle(0, 1, 2, 3)
    elif how == "nan_at":
        assert training.nodes[3].finish(20) == 1
        assert any("NonFiniteError" in line for line in training.nodes[3].lines)
        assert any("NonFiniteError" in line for line in training.nodes[0].lines)
    check_end(training.end(0, 1, 2), [0, 1, 2, 3] if how == "SIGSTOP" else [0, 1, 2])


@pytest.mark.release
def test_two_hang_one_after_the_other(run):
    """The second one while the others agree to go on without the first: they wait for the time-out twice."""
    training = run(algorithm="ST-GT", timeout=3)
    training.start(0, 1, 2)
    training.start(3, hang_at=30)
    training.start(4, hang_at=31)
    training.nodes[0].wait_until("round", round=20)
    training.settle(0, 1, 2)
    check_end(training.end(0, 1, 2), [0, 1, 2])


@pytest.mark.release
def test_without_a_lighthouse_the_members_train_on_and_find_the_next_one(run):
    training = run(algorithm="ST-GT", sleep=0.001)
    training.start(0, 1, 2)
    there = training.nodes[0].wait_until("round", round=20)
    training.lighthouse.kill()
    training.lighthouse.finish(10)
    training.nodes[0].wait_until("round", round=there["round"] + 300)
    training.nodes[0].wait_for("the lighthouse does not answer")
    training.start_lighthouse()
    training.start(3)
    training.settle(0, 1, 2, 3)
    check_end(training.end(0, 1, 2, 3), [0, 1, 2, 3])


@pytest.mark.release
@pytest.mark.timeout(120)
def test_a_network_is_cut_in_two_for_longer_than_the_timeout(run):
    """Two of five nodes are with the lighthouse, and no majority. The other three have no lighthouse. All wait."""
    try:
        with hosts(2) as net:
            training = run(algorithm="ST-GT", timeout=8, net=net, sleep=0.002)
            everybody = (0, 1, 2, 3, 5)
            training.start(*everybody)
            training.settle(*everybody)
            net.unplug(1)
            time.sleep(10)
            for k in everybody:
                assert training.nodes[k].poll() is None, training.nodes[k].lines[-30:]
            net.plug(1)
            after = 20 + max(one["round"] for one in training.nodes[0].said("round"))
            for k in everybody:
                training.nodes[k].wait_until("round", round=after)
            check_end(training.end(*everybody), everybody)
    except NoHostsError as error:
        pytest.skip(f"two hosts: {error}")


@pytest.mark.thorough
def test_too_few_wait_and_stop_with_a_checkpoint(run, tmp_path):
    """Two of three are left, and min_nodes is 3: they wait for the time-out, save, and go on when three are started."""
    training = run(algorithm="ST-GT", min_nodes=3, timeout=4, checkpoints=str(tmp_path / "kept"), save_every=50)
    training.start(0, 1, 2)
    training.nodes[0].wait_until("saved")
    training.kill(2)
    for k in (0, 1):
        assert training.nodes[k].finish(30) == 1
        assert any("TooFewNodesError: 2 nodes are left, and min_nodes is 3" in line for line in training.nodes[k].lines)
    last = max(line["round"] for line in training.nodes[0].said("round"))
    training.start(0, 1, 3)
    for k in (0, 1, 3):
        assert training.nodes[k].wait_until("loaded")["found"] >= last - 1
    training.settle(0, 1, 3)
    check_end(training.end(0, 1, 3), [0, 1, 3])


@pytest.mark.thorough
def test_all_are_told_to_end_and_save(run, tmp_path):
    """SIGTERM to all, as a cluster does: they end the round, save it, and the next start goes on from there."""
    training = run(algorithm="Outer", checkpoints=str(tmp_path / "kept"), save_every=1000, sleep=0.001)
    training.start(0, 1, 2)
    training.nodes[0].wait_until("saved", round=1000)
    last = training.nodes[0].wait_until("round", round=1020)["round"]
    for k in (0, 1, 2):
        training.nodes[k].send(signal.SIGTERM)
    assert [training.nodes[k].finish(30) for k in (0, 1, 2)] == [128 + signal.SIGTERM] * 3
    training.start(0, 1, 2)
    assert training.nodes[0].wait_until("loaded")["found"] >= last


@pytest.mark.release
@pytest.mark.parametrize("algorithm", ["ST-GT", "LED"])
@pytest.mark.parametrize("policy", ["patience", "tau"])
def test_a_slow_node_does_not_hold_up_the_others(run, policy, algorithm):
    """It sits out rounds, or takes fewer local steps, and all still go to the minimiser over all."""
    slow = {"patience": 0.01, "evaluate": list(range(40, 20_000, 40))} if policy == "patience" else {"tau": "auto"}
    training = run(algorithm=algorithm, **slow)
    training.start(0, 1, 2, sleep=0.002)
    training.start(3, sleep=0.02)
    training.settle(0, 1, 2, 3)
    check_end(training.end(0, 1, 2, 3), [0, 1, 2, 3])
    if policy == "patience":  # a node that has skipped the round comes to the others' call all the same
        counts = [len(node.said("evaluated")) for node in training.nodes.values()]
        assert min(counts) >= 2
        assert len(set(counts)) == 1


@pytest.mark.thorough
def test_a_call_of_one_node_alone_ends_with_a_sentence(run):
    training = run(algorithm="ST-GT", timeout=6)
    training.start(0, 1)
    training.start(2, evaluate_at=20)
    for k in (0, 1, 2):
        assert training.nodes[k].finish(40) == 1
        assert any("DeadlockError" in line and "n2 waits in evaluate()" in line for line in training.nodes[k].lines)


@pytest.mark.release
def test_all_evaluate_while_one_is_killed(run):
    training = run(algorithm="ST-GT", evaluate=list(range(10, 4000)))
    training.start(0, 1, 2, 3)
    training.nodes[3].wait_until("evaluated", round=12)
    training.kill(3)
    training.settle(0, 1, 2)
    assert len(training.nodes[0].said("evaluated")[-1]["found"]["own"]) == 3


@pytest.mark.release
def test_status_page(run, tmp_path):
    training = run(algorithm="ST-GT", serve=True)
    training.start(0, 1)
    address = training.nodes[0].wait_until("serving")["address"]
    training.start(2)
    training.settle(0, 1, 2)
    with urllib.request.urlopen(f"{address}/status.json", timeout=5) as answer:
        found = json.load(answer)
    assert [one.partition(":")[0] for one in found["members"]] == ["n0", "n1", "n2"]
    assert found["round"] > 0
    assert found["events"][-1]["joined"][0].startswith("n2:")
    with urllib.request.urlopen(address, timeout=5) as answer:
        assert "joined n2" in answer.read().decode()
    request = urllib.request.Request(address, headers={"Host": "example.org"})
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(request, timeout=5)


@pytest.mark.thorough
@pytest.mark.parametrize(("how", "hint"), [
    ({"topology": "server"}, "topology"),
    ({"algorithm": "Scaffold⁺"}, "algorithm='Scaffold⁺': conserves"),
    ({"algorithm": "ProxSkip"}, "algorithm='ProxSkip': begins"),
])  # fmt: skip
def test_what_is_not_known_is_refused(run, how, hint):
    training = run(**how)
    for node in training.start(0, 1):
        assert node.finish(30) == 1
        assert any("InputError" in line and hint in line for line in node.lines), node.lines
