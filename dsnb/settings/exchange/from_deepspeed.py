"""DeepSpeed's configuration in dsnb's settings: the table of written keys read backwards, and what belongs together."""

from collections.abc import Callable, Mapping
from typing import Any

from dsnb.base.formulas import model_shapes
from dsnb.settings import deepspeed_keys
from dsnb.settings.auto_values import AUTO, FROM_HIDDEN_SIZE, ONLY_ZERO_3
from dsnb.settings.exchange.imported import Imported, backwards, setting_of
from dsnb.settings.exchange.incoming import INCOMING
from dsnb.settings.tables import REFUSALS
from dsnb.settings.training import ADAMW

ZERO = "zero_optimization."
OPTIMIZER = ZERO + "offload_optimizer."
PARAMETERS = ZERO + "offload_param."
BUCKETS = (ZERO + "reduce_bucket_size", ZERO + "allgather_bucket_size")
PURE = ("bf16.bf16_master_weights_and_grads", "bf16.bf16_optimizer_states")
CHECKS = (ZERO + "compute_grad_norm", "bf16.check_grad_overflow")
TOGETHER = {*BUCKETS, *PURE, *CHECKS, "zero_allow_untested_optimizer"}
"""Keys that are no setting by themselves."""
ZEROPP = {
    (True, False): "weights",
    (False, True): "gradients",
}
"""Quantized weights, quantized gradients -> `zeropp`, without a second partition."""
ADAM = ("AdamW", "Adam", "FusedAdam")
"""DeepSpeed's Adam is AdamW unless told otherwise."""
HALF = {"float16": "fp16", "half": "fp16", "fp16": "fp16", "bfloat16": "bf16", "bf16": "bf16"}


def read(config: Mapping[str, Any], model: str | None = None) -> Imported:
    """Return the settings of a configuration; `model` gives numbers to keys that depend on the hidden size."""
    found = Imported()
    keys = deepspeed_keys.flattened({deepspeed_keys.NAME: config})
    keys = {_current(path): value for path, value in keys.items() if value is not None}
    found.put("the file", strategy="deepspeed")
    _automatic(keys, found, model)
    for group in GROUPS:
        group(keys, found)
    rules = backwards(deepspeed_keys.NAME)
    for path, value in keys.items():
        setting = None
        if path in rules and path not in TOGETHER:
            setting = setting_of(rules[path], value)
        if setting is not None:
            found.put(path, **{rules[path]["setting"]: setting})
        else:
            _rest(path, value, found)
    _ranks(keys, found)
    return found


def _current(path: str) -> str:
    """Return the path of a key in the current spelling."""
    return path.replace("bfloat16.", "bf16.", 1) if path.startswith("bfloat16.") else path


def _automatic(keys: dict[str, Any], found: Imported, model: str | None) -> None:
    """Leave `auto` open, but for buckets whose numbers follow from the model."""
    hidden = model_shapes.facts(model or "").get("hidden")
    for path in [path for path, value in keys.items() if value == AUTO]:
        del keys[path]
        if path in INCOMING["not_asked"]:
            found.dropped[path] = INCOMING["not_asked"][path]
        elif path not in FROM_HIDDEN_SIZE:
            found.left_open[path] = INCOMING["auto"].get(path, "the script fills it")
        elif path.startswith(ONLY_ZERO_3) and keys.get(ZERO + "stage") != 3:
            found.dropped[path] = "it is ZeRO 3's"
        elif hidden:
            keys[path] = FROM_HIDDEN_SIZE[path](hidden)
        else:
            found.left_open[path] = "it follows from the hidden size: give the model"


def _offload(keys: dict[str, Any], found: Imported) -> None:
    old = keys.pop(ZERO + "cpu_offload", False)
    places = {}
    for name, prefix in (("optimizer", OPTIMIZER), ("parameters", PARAMETERS)):
        place = keys.pop(prefix + "device", "none")
        path = keys.pop(prefix + "nvme_path", None)
        if place != "none":
            places[name] = str(place)
        if path and place == "nvme":
            found.put(prefix + "nvme_path", nvme_path=path)
        elif path:
            found.dropped[prefix + "nvme_path"] = "nothing is offloaded there"
        if keys.get(prefix + "pin_memory") is True or "optimizer.params.torch_adam" in keys:
            keys.pop(prefix + "pin_memory", None)  # as dsnb does by itself
    if old and not places:
        places["optimizer"] = "cpu"
    if not places:
        return
    key = OPTIMIZER + "device"
    if "optimizer" not in places:
        found.problems.append(
            "offload_param is given without offload_optimizer: dsnb offloads optimizer states, or these and parameters "
            "(all-cpu), which is another training; add offload_optimizer, or leave offload_param out"
        )
    elif len({*places.values()}) > 1:
        found.problems.append(
            f"optimizer states are offloaded to {places['optimizer']} and parameters to {places['parameters']}: "
            "dsnb offloads both to one place; name one device"
        )
    elif len(places) == 2:
        found.put(key, offload=f"all-{places['optimizer']}")
    else:
        found.put(key, offload=f"optimizer-{places['optimizer']}")


def _precision(keys: dict[str, Any], found: Imported) -> None:
    enabled = {name: keys.pop(f"{name}.enabled", False) for name in ("bf16", "fp16")}
    autocast = keys.pop("torch_autocast.enabled", False)
    dtype = HALF.get(str(keys.pop("torch_autocast.dtype", "")).removeprefix("torch."), "bf16")
    is_pure = [keys.get(name) is True for name in PURE]
    half = [name for name, is_on in enabled.items() if is_on]
    is_open = any(path in found.left_open for path in ("bf16.enabled", "fp16.enabled"))
    if autocast:
        found.put("torch_autocast", precision=dtype, mixed_precision="autocast")
    elif len(half) == 2:
        found.problems.append("bf16 and fp16 are both enabled: DeepSpeed takes one of them")
    elif half:
        found.put(f"{half[0]}.enabled", precision=half[0])
    elif not is_open:
        found.put("neither bf16 nor fp16", precision="fp32")
    if half == ["bf16"] and all(is_pure):
        found.put(PURE[0], mixed_precision="none")
        for name in PURE:
            del keys[name]
    used = found.settings.get("precision")
    for path in [path for path in keys if path.startswith(("bf16.", "fp16."))]:
        if not path.startswith(f"{used}.") or autocast:
            del keys[path]
            found.dropped[path.partition(".")[0]] = "it is not on"


def _accumulated(keys: dict[str, Any], found: Imported) -> None:
    path = "data_types.grad_accum_dtype"
    dtype = keys.pop(path, None)
    if dtype is not None:
        found.put(path, grad_accum_dtype=HALF.get(dtype, dtype))


def _zeropp(keys: dict[str, Any], found: Imported) -> None:
    weights = ZERO + "zero_quantized_weights"
    gradients = ZERO + "zero_quantized_gradients"
    kind = ZEROPP.get((bool(keys.get(weights)), bool(keys.get(gradients))))
    if kind and keys.get(ZERO + "zero_hpz_partition_size", 1) == 1:
        found.put("zero_quantized_" + kind, zeropp=kind)
        for path in (weights, gradients, ZERO + "zero_hpz_partition_size"):
            keys.pop(path, None)


def _buckets(keys: dict[str, Any], found: Imported) -> None:
    reduced, gathered = (keys.get(path) for path in BUCKETS)
    if reduced is not None and reduced == gathered:
        found.put(BUCKETS[0], bucket_elements=int(reduced))
        for path in BUCKETS:
            del keys[path]


def _checks(keys: dict[str, Any], found: Imported) -> None:
    if keys.get(CHECKS[0]) is False and keys.get(CHECKS[1], False) is False:
        found.put(CHECKS[0], gradient_checks="off")
        for path in CHECKS:
            keys.pop(path, None)


def _optimizer(keys: dict[str, Any], found: Imported) -> None:
    kind = keys.get("optimizer.type")
    if kind in ADAM and keys.get("optimizer.params.adam_w_mode", True) is not False:
        keys["optimizer.type"] = "AdamW"
    if keys.pop("optimizer.params.torch_adam", False):
        found.put("optimizer.params.torch_adam", device="cpu")
    for name, value in ADAMW.items():
        path = f"optimizer.params.{name}"
        given = keys.get(path)
        if given is not None and given in (value, [*value] if isinstance(value, tuple) else value):
            del keys[path]  # dsnb's own


def _split(keys: dict[str, Any], found: Imported) -> None:
    size = keys.pop("tensor_parallel.autotp_size", 0)
    if size > 1:
        found.put("tensor_parallel.autotp_size", tensor_parallel=size)


GROUPS: tuple[Callable[[dict[str, Any], Imported], None], ...] = (
    _precision, _accumulated, _optimizer, _offload, _zeropp, _buckets, _checks, _split,
)  # fmt: skip
"""What several keys say together; each takes its keys away."""


def _rest(path: str, value: Any, found: Imported) -> None:
    """Pass a key on to DeepSpeed, or say why it is left out."""
    name = deepspeed_keys.decided(path)
    section = next((key for key in INCOMING["deepspeed"] if f"{path}.".startswith(f"{key}.")), None)
    if section:
        found.dropped[section] = INCOMING["deepspeed"][section]
    elif path == "optimizer.type":
        found.problems.append(
            f"optimizer.type is {value!r}: dsnb has AdamW, Adafactor and Muon; name one of them"
        )
    elif name and name != "train_batch_size":
        found.dropped[path] = REFUSALS["decided_keys"][name]
    elif not name:
        found.put(path, **{deepspeed_keys.PREFIX + path: value})


def _ranks(keys: Mapping[str, Any], found: Imported) -> None:
    """Derive the number of ranks from the batch sizes."""
    total = keys.get("train_batch_size")
    micro = found.settings.get("micro_batch_size")
    if total is None:
        return
    steps = found.settings.get("grad_accum", 1)
    if micro and total % (micro * steps) == 0:
        ranks = total // (micro * steps) * found.settings.get("tensor_parallel", 1)
        found.put("train_batch_size", gpus=ranks)
    else:
        found.dropped["train_batch_size"] = "give micro_batch_size, grad_accum and gpus"
