"""Whether compiled models compute what eager ones do.

`python -m benchmarks.compiled_gradients MODEL BATCH LENGTH [LAYERS]` makes one forward and backward
pass of a plain loop for each way to compute it, all from the same weights and tokens, and prints
the loss, the norm of the gradient, and the parameters whose gradients are furthest from those of an
eager pass in fp32. Where a compiled pass is far off and the eager one is not, the further ways tell
what does it: the attention kernel, padding, or the compiler's code.
"""

import gc
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch._inductor import config as inductor
from torch.backends import cuda

from dsnb.base.system import hardware
from dsnb.models.build import DTYPES, build, model_config
from dsnb.models.loss import CausalLoss
from dsnb.settings.experiment import Experiment

KERNELS = ("cudnn", "flash", "mem_efficient", "math")
WAYS: dict[str, dict[str, Any]] = {
    "eager": {},
    "eager, flash": {"kernel": "flash"},
    "eager, math": {"kernel": "math"},
    "compiled": {"compile": {}},
    "compiled, again": {"compile": {}},
    "compiled, flash": {"compile": {}, "kernel": "flash"},
    "compiled, CUDA graphs": {"compile": {"mode": "reduce-overhead"}},
    "compiled, without Inductor": {"compile": {"backend": "aot_eager"}},
    "compiled, products not padded": {"compile": {}, "inductor": {"shape_padding": False}},
    "compiled, strides not padded": {"compile": {}, "inductor": {"comprehensive_padding": False}},
    "compiled, no online softmax": {"compile": {}, "inductor": {"online_softmax": False}},
    "compiled, eager's roundings": {"compile": {}, "inductor": {"emulate_precision_casts": True}},
    "compiled, no persistent reductions": {
        "compile": {},
        "inductor": {"triton.persistent_reductions": False},
    },
    "compiled, no caches": {"compile": {}, "inductor": {"force_disable_caches": True}},
}


def shortened(model: str, layers: int, folder: Path) -> str:
    """Write the configuration of a model with fewer layers; return its folder."""
    settings = model_config(Experiment(model=model)).to_dict()
    name = next(name for name in ("n_layer", "num_hidden_layers") if name in settings)
    (folder / "config.json").write_text(json.dumps({**settings, name: layers}))
    return str(folder)


@contextmanager
def computing(
    kernel: str | None = None, inductor: dict[str, Any] | None = None, **_: Any
) -> Iterator[None]:
    """Allow one attention kernel alone, and set the compiler's options."""
    for name in KERNELS:
        getattr(cuda, f"enable_{name}_sdp")(kernel in (None, name))
    torch._dynamo.reset()
    with inductor_options(inductor):
        yield
    for name in KERNELS:
        getattr(cuda, f"enable_{name}_sdp")(True)


def inductor_options(options: dict[str, Any] | None) -> Any:
    """Return a context with other options of the compiler."""
    return inductor.patch(options) if options else nullcontext()


def one_pass(
    experiment: Experiment, ids: torch.Tensor, half: torch.dtype, **way: Any
) -> tuple[float, CausalLoss]:
    """Return the loss of one pass, and the model with its gradients."""
    model = CausalLoss(build(experiment, {}, ids.device), experiment.loss == "chunked")
    if "compile" in way:
        model.compile_inside(**way["compile"])
    with computing(**way):
        with torch.autocast(ids.device.type, dtype=half, enabled=half is not torch.float32):
            loss = model(ids)
        loss.backward()
    return float(loss.detach()), model


def gradients(model: CausalLoss) -> dict[str, torch.Tensor]:
    """Return the gradients of all parameters in fp32, on the host."""
    return {
        name: weight.grad.float().cpu()
        for name, weight in model.named_parameters()
        if weight.grad is not None
    }


def furthest(
    computed: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], count: int = 4
) -> str:
    """Name the parameters whose gradients have the largest relative errors (in the 2-norm)."""
    errors = {
        name: float((gradient - wanted[name]).norm() / wanted[name].norm())
        for name, gradient in computed.items()
    }
    worst = sorted(errors, key=lambda name: -errors[name])[:count]
    return ", ".join(f"{name} {100 * errors[name]:.2f} %" for name in worst)


def norm(computed: dict[str, torch.Tensor]) -> float:
    """Return the norm of the whole gradient."""
    return float(torch.stack([gradient.norm() for gradient in computed.values()]).norm())


@contextmanager
def asked() -> Iterator[tuple[Experiment, torch.Tensor]]:
    """Yield a plain loop and a batch of random tokens, as MODEL BATCH LENGTH [LAYERS] on the command line say."""
    model, batch, length, *layers = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        name = shortened(model, int(layers[0]), Path(folder)) if layers else model
        experiment = Experiment(
            model=name, strategy="plain", seq_len=int(length), micro_batch_size=int(batch)
        )
        torch.manual_seed(0)
        shape, device = (int(batch), int(length)), hardware.default_device()
        yield (
            experiment,
            torch.randint(0, model_config(experiment).vocab_size, shape, device=device),
        )


def main() -> None:
    """Print a line for each way."""
    with asked() as (experiment, ids):
        loss, exact = one_pass(
            experiment.model_copy(update={"attention": "eager"}), ids, torch.float32
        )
        wanted = gradients(exact)
        print(f"{'fp32, eager':36} loss {loss:.6f} norm {norm(wanted):.6f}", flush=True)
        for what, way in WAYS.items():
            loss, trained = one_pass(experiment, ids, DTYPES["bf16"], **way)
            computed = gradients(trained)
            print(
                f"{what:36} loss {loss:.6f} norm {norm(computed):.6f} furthest: {furthest(computed, wanted)}",
                flush=True,
            )
            del trained
            gc.collect()
            if ids.is_cuda:
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
