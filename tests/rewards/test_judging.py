"""The processes that judge answers: whatever a model writes, they end, and training goes on."""

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from trl_credit.rewards import accuracy_reward
from trl_credit.rewards.judging import JudgePool, Outcome, default_pool
from trl_credit.rewards.judging.pool import _limit
from trl_credit.rewards.judging.worker import wall_limit


@pytest.fixture
def pool():
    pool = JudgePool(1)
    yield pool
    pool.close()


def pid(pool):
    worker = pool._idle.get()
    pool._idle.put(worker)
    return worker._process.pid


def judge_of(pool):
    """The child that judges, where a worker has one."""
    children = Path(f"/proc/{pid(pool)}/task/{pid(pool)}/children")
    return int(children.read_text()) if children.is_file() else pid(pool)


@pytest.mark.slow
def test_what_hangs_is_killed_and_its_judge_replaced_and_no_verdict_depends_on_neighbours(pool):
    # the slowest answers of the data sets, which need some tenths of a second
    slow = [
        ("\\frac{\\cos (2 t)}{15}+C_{1} e^{t}+C_{2} e^{-t}+C_{3} \\cos (t)+C_{4} \\sin (t)",) * 2,
        ("\\frac{1}{s+a}", "\\frac{2}{2s+2a}"),
        ("(x+1)^{20}", "(x+1)^{19}(1+x)"),
    ]
    alone = [pool.equal([pair], timeout=2.0)[0] for pair in slow]
    hangs = [(f"9^{{9^{{9^{{{n}}}}}}}", "4") for n in range(9, 21)]
    worker, judge = pid(pool), judge_of(pool)
    pool._remembered.clear()
    *outcomes, factorial = pool.equal([*hangs[:6], *slow, *hangs[6:], ("(10^{8})!", "5")], timeout=2.0)
    assert outcomes[6:9] == alone == [Outcome.RIGHT] * 3
    assert {Outcome.TIMED_OUT} <= {*outcomes[:6], *outcomes[9:]} <= {Outcome.TIMED_OUT, Outcome.FAILED}
    assert factorial in (Outcome.TIMED_OUT, Outcome.FAILED, Outcome.WRONG)
    assert pid(pool) == worker  # no worker had to start again
    if judge != worker:
        assert judge_of(pool) != judge
        with pytest.raises(ProcessLookupError):
            os.kill(judge, 0)


def test_the_limit_depends_on_the_answer_alone():
    heavy = ["9^{9^{9}}", "2^{(3^{4})}", "2^{100000}", "(10^{8})!", "100000!", "5!!", "9**9**9"]
    light = ["42", "2^{10}", "x^{n^2}", "10!", "\\frac{1}{2}", "e^{-2t}", "10^{-9}", "x^2+y^2", "12345678"]
    assert [_limit((text, "4", "", True, 1.0)) for text in heavy] == [0.1] * len(heavy)
    assert [_limit((text, "4", "", True, 1.0)) for text in light] == [1.0] * len(light)


def slow_pairs(n):
    """Answers of ordinary looks that take their judge seconds, none of them right."""
    return [(f"(x+1)^{{{60 + i}}}(y+2)^{{60}}=z", f"(x+1)^{{{59 + i}}}(y+2)^{{61}}=z") for i in range(n)]


@pytest.mark.slow
def test_hanging_answers_of_a_batch_have_a_budget_and_the_others_their_verdicts(pool):
    ordinary = [(f"\\frac{{{2 * i}}}{{2}}", str(i + (i % 5 == 0))) for i in range(1, 30)]
    alone = pool.equal(ordinary)
    pool._remembered.clear()
    hangs = slow_pairs(12)
    outcomes = pool.equal(hangs[:6] + ordinary + hangs[6:], timeout=1.0, slow_answers=2)
    assert outcomes[6:-6] == alone and alone.count(Outcome.RIGHT) == 24
    assert Counter(outcomes[:6] + outcomes[-6:]) == {Outcome.TIMED_OUT: 2, Outcome.OVER_BUDGET: 10}
    heavy = [(f"9^{{9^{{9^{{{n}}}}}}}", "4") for n in range(9, 14)]  # these have a tenth anyway
    assert set(pool.equal([*heavy, *hangs[-1:]], timeout=1.0, slow_answers=1)) == {Outcome.TIMED_OUT}


@pytest.mark.parametrize(("forks", "wall"), [(True, 11.0), (False, 0.2)])
def test_wall_time_is_a_limit_where_processor_time_is_not_counted(monkeypatch, forks, wall):
    monkeypatch.setattr("trl_credit.rewards.judging.worker.FORKS", forks)
    assert wall_limit(0.2, timeout=1.0) == wall


@pytest.mark.slow
def test_the_accuracy_reward_says_what_was_over_its_budget():
    logged = {}
    texts = [f"\\boxed{{{answer}}}" for answer, _ in slow_pairs(4)] + ["\\boxed{7.0}"]
    golds = [gold for _, gold in slow_pairs(4)] + ["7"]
    settings = {"timeout": 0.5, "slow_answers": 1, "log_metric": logged.__setitem__}
    assert accuracy_reward(texts, golds, **settings) == [0.0] * 4 + [1.0]
    assert (logged["accuracy/timed_out"], logged["accuracy/over_budget"]) == (4.0, 3.0)


def test_equal_pairs_are_judged_once(pool):
    asked, judge = [], pool._judge
    pool._judge = lambda questions, share: asked.extend(questions) or judge(questions, share)
    outcomes = pool.equal([("0.5", "\\frac{1}{2}")] * 100 + [("0.5", "\\frac{1}{3}")] * 100)
    assert outcomes == [Outcome.RIGHT] * 100 + [Outcome.WRONG] * 100 and len(asked) == 2
    assert pool.equal([("0.5", "\\frac{1}{2}")]) == [Outcome.RIGHT] and len(asked) == 2


def test_what_is_remembered_is_bounded(pool, monkeypatch):
    monkeypatch.setattr("trl_credit.rewards.judging.pool._MOST_REMEMBERED", 3)
    for i in range(5):
        assert pool.equal([(f"{i}.0", str(i)), ("2" * 501, "3")]) == [Outcome.RIGHT, Outcome.WRONG]
        assert 0 < len(pool._remembered) <= 3 and all(len(answer) == 3 for answer, *_ in pool._remembered)


@pytest.mark.slow
def test_a_worker_that_dies_over_an_answer_is_replaced_and_counted(pool):
    pool.equal([("4", "4")])
    killer = threading.Timer(1.0, os.kill, (pid(pool), signal.SIGKILL))
    killer.start()
    assert pool.equal([("9^{9^{9^{9}}}", "2"), ("1+2", "3")], timeout=60.0) == [Outcome.FAILED, Outcome.RIGHT]


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of memory is Linux's")
@pytest.mark.slow
def test_memory_is_limited():
    pool = JudgePool(1, memory=1.0)
    # a number of 8 GB; without a limit it is there in less than the time allowed
    outcomes = pool.equal([("\\left(2^{64000000000}\\right)", "4"), ("\\frac{8}{2}", "4")], timeout=20.0)
    pool.close()
    assert outcomes[0] is not Outcome.RIGHT is outcomes[1]


def test_from_many_threads_at_once():
    pairs = [[(f"\\frac{{{2 * i}}}{{2}}", str(i + (t % 2))) for i in range(10)] for t in range(6)]
    verdicts = [None] * 6

    def judge(t):
        verdicts[t] = [outcome is Outcome.RIGHT for outcome in default_pool().equal(pairs[t])]

    threads = [threading.Thread(target=judge, args=(t,)) for t in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == [[t % 2 == 0] * 10 for t in range(6)]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_has_workers_of_its_own():
    default_pool().equal([("\\frac{6}{3}", "2")])
    code = (
        "import os\n"
        "from trl_credit.rewards.judging import default_pool\n"
        "assert default_pool().equal([('\\\\frac{6}{3}', '2')]) == ['right']\n"
        "child = os.fork()\n"
        "outcomes = default_pool().equal([('\\\\frac{9}{3}', '3' if child else '4')])\n"
        "if child == 0:\n    default_pool().close(); os._exit(7 if outcomes == ['wrong'] else 1)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7 and outcomes == ['right']\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.slow
def test_workers_end_with_their_parent_even_if_it_is_killed():
    code = (
        "import sys, time\n"
        "from trl_credit.rewards.judging import JudgePool\n"
        "pool = JudgePool(1); pool.equal([('1+1', '2')])\n"
        "worker = pool._idle.get(); print(worker._process.pid, flush=True)\n"
        "pool._idle.put(worker); pool.equal([('9^{9^{9^{9}}}', '2')], timeout=2.0 if len(sys.argv) < 2 else 100.0)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    worker = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    for _ in range(100):  # its own alarm ends it, after the time that the answer had
        try:
            state = Path(f"/proc/{worker}/stat").read_text().split()[2] if sys.platform == "linux" else ""
            os.kill(worker, 0)
        except (FileNotFoundError, ProcessLookupError):
            return
        if state == "Z":  # where nobody waits for orphans
            return
        threading.Event().wait(0.1)
    pytest.fail("the worker outlived its parent")


@pytest.mark.slow
def test_a_script_without_a_main_guard_is_not_run_again(tmp_path):
    script = tmp_path / "no_guard.py"
    script.write_text(
        "from trl_credit.rewards import accuracy_reward\n"
        "print('once')\n"
        "print(accuracy_reward(['so \\\\boxed{\\\\frac{1}{2}}'], ['0.5']))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout == "once\n[1.0]\n"


HOSTILE = {
    "tower": "\\boxed{9^{9^{9^{9^{9}}}}}",
    "factorial": "\\boxed{(10^{8})!}",
    "brackets": "\\boxed{" + "(" * 3000 + ")" * 3000 + "}",
    "open brackets": "\\boxed{" + "(" * 3000 + "}",
    "nested fractions": "\\boxed{" + "\\frac{1}{" * 500 + "2" + "}" * 500 + "}",
    "many digits": "\\boxed{" + "9" * 15_000 + "}",
    "commas": "\\boxed{" + "1," * 9_000 + "1}",
    "groups": "\\boxed{" + ",".join(["123"] * 4_000) + "}",
    "spaces": "\\boxed{1" + " " * 19_000 + "/2}",
    "boxes": "\\boxed{1}" * 20_000,
    "thinking": "<think>" * 50_000,
    "tags": "<answer>" * 50_000 + "</answer>" * 50_000,
    "answers": "answer is " * 50_000,
    "dollars": "the answer is " + "$" * 1_000,
    "nul": "\x00\\boxed{<script>\x00</script>}",
    "surrogate": "\\boxed{\ud800}",
    "spaces between boxes": "\\boxed{1}" + " " * 1_000_000 + "x\\boxed{2}",
    "gaps": ("\\boxed{1}" + " " * 40_000 + "x") * 25,
    "html": "\\boxed{<img src=x onerror=alert(1)>}",
    "json": '\\boxed{"], 1]\n1}',
}


def test_hostile_outputs_score_zero_and_leave_the_others_right():
    texts, golds = list(HOSTILE.values()), [str(i) for i in range(50)]
    rewards = accuracy_reward([*texts, *(f"\\boxed{{{gold}.0}}" for gold in golds)], ["5"] * len(texts) + golds)
    assert dict(zip(HOSTILE, rewards, strict=False)) == dict.fromkeys(HOSTILE, 0.0)
    assert rewards[len(texts) :] == [1.0] * len(golds)
