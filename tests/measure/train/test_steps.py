"""How a rank is set up, and in which order it trains, waits and measures; trainer, meter and group are fakes."""

import contextlib
from datetime import timedelta
from types import SimpleNamespace

import pytest

from dsnb.base.files import json_files
from dsnb.settings.records.paths import RunPaths
from tests.support import lazy

torch = lazy.Module("torch")
worker, trainers, launches = (
    lazy.Module(f"dsnb.measure.train.{name}") for name in ("worker", "trainer", "launches")
)
failure = lazy.Module("dsnb.measure.record.failure")
deepspeed = lazy.Module("deepspeed")


class FakeMeter:
    """Notes what is asked of it in `events`; `losses` are those of rank 0."""

    energy_j, alloc_retries, cpu_bound, skipped_steps = 7.0, 2, 0.5, 1

    def __init__(self, events):
        self.peak_gib = {"a": 1.0}
        self.span_s = {"warmup": (3.0, 4.0), "timed": (5.0, 9.0)}
        self.events, self.losses = events, torch.tensor([4.0, 3.0, 2.0, 1.0])

    def begin(self, phase, barrier):
        self.events.append(f"begin {phase}")
        barrier()

    def section(self, name):
        return contextlib.nullcontext()

    def step(self, loss, skipped, norm):
        self.events.append((float(loss), skipped, norm))

    def end(self):
        self.events.append("end")

    def close(self, losses):
        self.events.append(("close", losses))

    def abort(self):
        self.events.append("abort")

    def times_s(self, phase):
        return [1.0] if phase == "timed" else [9.0]

    forwards_s = times_s


@pytest.fixture
def fakes(monkeypatch):
    """Give the events of a rank, its trainer, its meter, and a watch of its attention."""
    events = []

    class Trainer:
        section, optimizer, config = None, object(), SimpleNamespace(_attn_implementation="sdpa")

        def step(self, batch):
            events.append(f"step {batch}")
            if batch == "fails":
                raise ValueError("3 is odd")
            return torch.tensor(0.5), batch == 1

        def grad_norm(self):
            return 2.5

    class Watch:
        kernel = "flash"

        @contextlib.contextmanager
        def watching(self):
            events.append("watch")
            yield
            events.append("watched")

    monkeypatch.setattr("deepspeed.comm.barrier", lambda: events.append("barrier"))
    monkeypatch.setattr(
        "dsnb.measure.train.over_ranks.mean_of_ranks",
        lambda losses: [2 * x for x in losses.tolist()],
    )
    graphs = iter([3, 5, 9])
    monkeypatch.setattr("dsnb.measure.train.worker.compiled_graphs", lambda: next(graphs))
    return SimpleNamespace(
        events=events,
        trainer=Trainer(),
        meter=FakeMeter(events),
        watch=Watch(),
        position=failure.Position(),
    )


def steps_of(fakes, experiment, data=lambda step: step):
    return worker.run_steps(
        experiment, fakes.trainer, data, fakes.meter, fakes.position, fakes.watch
    )


def test_all_ranks_wait_for_each_other_before_each_phase_and_the_second_step_is_watched(
    small, fakes
):
    compiled, losses = steps_of(fakes, small(warmup_steps=2, steps=2))
    step = (0.5, False, 2.5)
    assert fakes.events == [
        "begin warmup", "barrier", "step 0", step, "watch", "step 1", "watched", (0.5, True, 2.5), "end",
        "begin timed", "barrier", "step 2", step, "step 3", step, "end",
        ("close", [8.0, 6.0, 4.0, 2.0]),
    ]  # fmt: skip
    assert losses == [8.0, 6.0, 4.0, 2.0]
    assert compiled == 9 - 5  # since the timed steps began
    assert fakes.position.step == 4
    assert fakes.trainer.section is trainers.no_section


@pytest.mark.parametrize(("warmup", "watched"), [(1, 0), (0, None)])
def test_without_a_second_warm_up_step_the_first_is_watched_and_never_a_timed_one(
    small, fakes, warmup, watched
):
    steps_of(fakes, small(warmup_steps=warmup, steps=3))
    steps = [event for event in fakes.events if str(event).startswith(("watch", "step"))]
    found = None
    if "watch" in steps:
        found = int(steps[steps.index("watch") + 1].removeprefix("step "))
    assert found == watched


def test_a_step_that_fails_leaves_the_steps_before_it(small, fakes):
    with pytest.raises(ValueError, match="3 is odd"):
        steps_of(fakes, small(warmup_steps=0, steps=2), lambda step: "fails" if step else step)
    assert fakes.events[-2:] == ["step fails", "abort"]
    assert fakes.position.step == 2


def test_what_a_rank_reports_of_its_steps(small, fakes, monkeypatch):
    """Two steps of warm-up and two timed ones, of which one was skipped."""
    asked = {}
    monkeypatch.setattr(
        "dsnb.measure.train.worker.run_steps", lambda *_: (6, [2.0, float("nan"), 1.0, 1.0])
    )
    monkeypatch.setattr(
        "dsnb.measure.train.worker.KernelWatch", lambda flex: SimpleNamespace(kernel=flex)
    )
    monkeypatch.setattr("dsnb.measure.train.worker.graph_breaks", lambda: 11)
    watch = SimpleNamespace(changes=lambda _, updates, device: {"updates": updates})
    for name, value in {
        "WeightWatch": lambda optimizer: watch,
        "peaks_of_ranks": lambda peaks, device: {"peaks": peaks},
        "skew_of_ranks": lambda times, forwards, device: {"skew": (times, forwards)},
        "sum_of_ranks": lambda value, device: ("sum", value),
        "max_of_ranks": lambda value, device: ("max", value),
    }.items():
        monkeypatch.setattr(f"dsnb.measure.train.over_ranks.{name}", value)
    monkeypatch.setattr(
        "dsnb.base.system.own_memory.reset_peak", lambda: asked.setdefault("reset", True)
    )
    found = worker.train_steps(
        small(warmup_steps=2, steps=2), fakes.trainer, None, fakes.meter, fakes.position
    )
    assert found == {
        "peaks": {"a": 1.0},
        "skew": ([1.0], [1.0]),
        "energy_j": ("sum", 7.0),
        "alloc_retries": ("max", 2),
        "cpu_bound": ("max", 0.5),
        "attention_kernel": False,
        "recompilations": 6,
        "compiled_graphs": None,
        "graph_breaks": None,
        "updates": 3,
        "timed_from_s": 5.0,
        "timed_to_s": 9.0,
        "steps_from_s": 3.0,
        "first_bad_step": 2,
    }
    assert asked == {"reset": True}
    compiled = worker.train_steps(
        small(compile="default"), fakes.trainer, None, fakes.meter, fakes.position
    )
    assert (compiled["compiled_graphs"], compiled["graph_breaks"]) == (3, 11)


@pytest.mark.parametrize(
    ("settings", "tf32", "wait_s"),
    [
        ({"precision": "fp32", "step_timeout_s": 90.0}, False, 90.0),
        ({"precision": "tf32", "step_timeout_s": 1e12}, True, 30 * 86400.0),
    ],
)
def test_a_rank_is_set_up_as_the_settings_say(small, monkeypatch, settings, tf32, wait_s):
    joined, made = [], []
    threads = torch.get_num_threads()
    switches = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [switch.allow_tf32 for switch in switches]
    for switch in switches:
        switch.allow_tf32 = not tf32
    monkeypatch.setenv("OMP_NUM_THREADS", str(threads + 1))
    monkeypatch.setattr(torch.distributed, "new_group", lambda **options: made.append(options))
    monkeypatch.setattr(deepspeed.ops, "__compatible_ops__", {"an op": True}, raising=False)
    monkeypatch.setattr(
        "deepspeed.init_distributed", lambda backend, **how: joined.append((backend, how))
    )
    experiment = small(seed=5).model_copy(update=settings)
    try:
        device = worker.set_up(experiment)
        assert (device.type, torch.get_num_threads()) == ("cpu", threads + 1)
        assert [switch.allow_tf32 for switch in switches] == [tf32, tf32]
    finally:
        torch.set_num_threads(threads)
        for switch, was in zip(switches, before, strict=True):
            switch.allow_tf32 = was
    torch.distributed.new_group()
    assert torch.initial_seed() == 5
    limit = timedelta(seconds=wait_s)
    assert joined == [("gloo", {"timeout": limit, "init_method": "dsnb://"})]
    assert made == [{"timeout": limit}]  # DeepSpeed's own groups have none otherwise
    assert deepspeed.ops.__compatible_ops__ == {}


def causal_loss(error):
    raise error


def raised(error, function=None):
    """Return an error as it is after it was raised, by default by this function."""
    try:
        if function:
            function(error)
        raise error
    except Exception as caught:
        return caught


SHORT = {"allocated_gib": 70.0, "reserved_gib": 75.0, "requested_gib": 4.0}


@pytest.mark.parametrize(
    ("error", "phase", "row"),
    [
        (ValueError("3 is odd\nand more"), "forward",
         {"status": "failed", "phase": "forward", "in_communication": False, "cause": "ValueError: 3 is odd"}),
        (RuntimeError("[gloo/transport/tcp/pair.cc:538] Connection closed"), "backward",
         {"status": "failed", "phase": "backward", "in_communication": True,
          "cause": "RuntimeError: [gloo/transport/tcp/pair.cc:538] Connection closed"}),
        (MemoryError(), "backward",
         {"status": "oom", "phase": "backward", "in_communication": False, **SHORT,
          "cause": "MemoryError: no message"}),
        (RuntimeError("CUDA error: out of memory"), "forward",
         {"status": "oom", "phase": "forward", "in_communication": False, **SHORT,
          "cause": "RuntimeError: CUDA error: out of memory"}),
    ],
)  # fmt: skip
def test_why_a_rank_failed_is_recorded(tmp_path, error, phase, row):
    run = RunPaths(tmp_path)
    position = failure.Position(phase, 3, SHORT)
    failure.record(run, 2, position, raised(error))
    assert json_files.read_lines(run.failures) == [{"rank": 2, "step": 3, **row}]


@pytest.mark.parametrize(
    ("phase", "function", "recorded"),
    [("forward", causal_loss, "loss"), ("forward", None, "forward"), ("backward", causal_loss, "backward")],
)  # fmt: skip
def test_memory_that_runs_out_in_the_loss_is_told_apart(tmp_path, phase, function, recorded):
    run = RunPaths(tmp_path)
    failure.record(run, 0, failure.Position(phase, 1, SHORT), raised(MemoryError("x"), function))
    (row,) = json_files.read_lines(run.failures)
    assert row["phase"] == recorded


def test_without_an_observer_the_message_says_how_much_was_requested(tmp_path):
    run = RunPaths(tmp_path)
    said = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4294967296 bytes."
    failure.record(run, 0, failure.Position("backward", 1), raised(RuntimeError(said)))
    (row,) = json_files.read_lines(run.failures)
    assert (row["status"], row["requested_gib"]) == ("oom", 4.0)
    assert 0 < row["allocated_gib"] < 1000


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("profile", [False, True])
def test_rank_0_writes_the_record_and_every_rank_takes_part_in_the_profile(
    small, tmp_path, monkeypatch, rank, profile
):
    """Launched at 100 s, started at 103, built at 110, and ended after 30 s; two timed steps took 5 s."""
    made, events = {}, []
    trainer = SimpleNamespace(
        config=SimpleNamespace(vocab_size=9, num_hidden_layers=4, hidden_size=128),
        describe=lambda: {"strategy": "x"},
        parameters={"parameters": 7},
    )

    def meter(path, steps, tokens, device, launched_at, **options):
        made.update(path=path, steps=steps, tokens=tokens, launched_at=launched_at, **options)
        return SimpleNamespace(wall_s={"warmup": 2.0, "timed": 5.0})

    def profiled(run, of, batch, device, step_s):
        events.append(("profile", batch, step_s))

    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("DSNB_LAUNCHED_AT", "100.0")
    for name, value in {
        "worker.set_up": lambda _: torch.device("cpu"),
        "worker.proved": lambda asked, _: (asked, "it is odd"),
        "worker.make_trainer": lambda *_: trainer,
        "worker.batches": lambda _, vocab, of_rank, device: lambda step: (vocab, of_rank, step),
        "worker.Meter": meter,
        "worker.train_steps": lambda *_: {"measured": True},
        "profiling.profile": profiled,
        "worker.versions": lambda: {"cuda": None},
    }.items():
        monkeypatch.setattr(f"dsnb.measure.train.{name}", value)
    monkeypatch.setattr("dsnb.models.observe.flops.record", lambda _: {"flops_per_token": 3.0})
    monkeypatch.setattr("dsnb.base.system.launch_clock.now_s", lambda: 110.0)
    monkeypatch.setattr("dsnb.base.system.launch_clock.since_launch_s", lambda: 30.0)
    monkeypatch.setattr(
        torch.distributed, "destroy_process_group", lambda: events.append("destroyed")
    )
    run = RunPaths(tmp_path)
    asked = small(gpus=2, warmup_steps=1, steps=2, profile=profile)
    worker.train(run, asked, failure.Position(), 103.0)
    record = json_files.read_json(run.worker)
    if rank:
        assert record is None
    else:
        threads = torch.get_num_threads()
        assert record == {
            "strategy": "x", "parameters": 7, "unproved": "it is odd", "layers": 4, "hidden": 128,
            "vocab": 9, "cpu_threads": threads, "gpu_name": None, "versions": {"cuda": None}, "measured": True,
            "power_source": None,
            "phases_s": {"start": 3.0, "build": 7.0, "warmup": 2.0, "timed": 5.0},
            "ended_s": 30.0, "flops_per_token": 3.0,
        }  # fmt: skip
    assert made["path"] == (None if rank else run.steps)
    assert (made["steps"], made["tokens"], made["launched_at"]) == (3, 2 * 64, 100.0)
    assert (made["gpu"], made["marks_forward"]) == (None, True)
    last = [("profile", (9, rank, 2), 2.5)] if profile else []
    assert events == [*last, "destroyed"]


def test_a_launch_takes_the_median_of_batches_after_the_first(monkeypatch):
    """Batches of 9, 6, 3 and 12 s, until 30 s have passed: 6 s are 5 passes of 120 operations."""
    now_s = iter([0, 9, 10, 16, 20, 23, 30, 42])
    monkeypatch.setattr(
        "dsnb.measure.train.launches.time", SimpleNamespace(perf_counter=lambda: next(now_s))
    )
    assert launches.launch_us(torch.device("cpu"), 30.0) == 6e6 / (5 * 120)


@pytest.mark.parametrize(("error", "code"), [(None, 0), (ValueError("3 is odd"), 1)])
def test_a_rank_that_fails_says_why_and_ends_with_1(small, tmp_path, monkeypatch, error, code):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.delenv("DSNB_LAUNCHED_AT", raising=False)
    run = RunPaths(tmp_path)
    json_files.write_json(run.experiment, small().model_dump())

    def work(of_run, experiment, position, began):
        assert (of_run, experiment, position.phase) == (run, small(), "build")
        if error:
            raise error

    assert worker.run_rank(str(tmp_path), work) == code
    causes = [(row["rank"], row["cause"]) for row in json_files.read_lines(run.failures)]
    assert causes == ([(1, "ValueError: 3 is odd")] if error else [])
