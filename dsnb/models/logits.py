"""How a model makes its logits of the product of its output layer, observed in its own code.

A configuration does not tell: `logits_scaling` divides Granite's logits and multiplies those of
HyperCLOVA X. The model's forward pass runs once with stubs for everything below the output layer,
and for the layer itself, so no weight is read: weights may be partitioned, or on the meta device.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast

from dsnb.models.parts import below_output

TOLERANCE = 1e-4
"""Of fitted factors; a model may compute in half precision what it is given in more."""
PRODUCTS = (1e-3, 1e-2, 0.1, 1.0, 3.0, 10.0, 30.0, 100.0, 1e3, 1e6)
"""Products that the stub of an output layer returns, with both signs: the smallest show a factor, the largest a cap."""
WIDTH = 8
NOT_ALONE = "its logits are not made by its output layer alone"


class LogitMap(NamedTuple):
    """Logits as a function of hidden states: `scale` x layer(`inputs` x states), with or without a soft cap."""

    inputs: float = 1.0
    scale: float = 1.0
    cap: float = 0.0
    """Limit of a soft cap, cap x tanh(x / cap); 0 if there is none."""

    @property
    def is_product(self) -> bool:
        """Whether logits are the layer's product."""
        return self.scale == 1 and not self.cap

    def logits(self, product: Tensor) -> Tensor:
        """Return the logits of a product of the output layer."""
        scaled = self.scale * product
        if self.cap:
            return self.cap * torch.tanh(scaled / self.cap)
        return scaled

    def slope(self, logits: Tensor) -> Tensor | float:
        """Return the derivative of logits with respect to their product."""
        if self.cap:
            return self.scale * (1 - (logits / self.cap) ** 2)
        return self.scale


PRODUCT = LogitMap()


class _Below(BaseModelOutputWithPast):
    """An output of everything below the output layer in which whatever else a model asks for is None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def logit_map(model: Any) -> LogitMap:
    """Return how a causal language model makes its logits; raise ValueError that says what is missing otherwise."""
    layer = model.get_output_embeddings()
    if not isinstance(layer, nn.Linear):
        raise ValueError(f"its output layer is of type {type(layer).__name__}, not a linear layer")
    with torch.device("cpu"):  # also where a model is being built on the meta device
        return _observed(model, layer)


def _observed(model: Any, layer: Any) -> LogitMap:
    rows = 2 * len(PRODUCTS)
    states = torch.linspace(-2, 2, rows * WIDTH, dtype=torch.float64).view(1, rows, WIDTH)
    products = torch.tensor([*PRODUCTS, *(-value for value in PRODUCTS)], dtype=torch.float64)
    products = torch.stack([products.roll(turn) for turn in range(WIDTH)], dim=-1)[None]
    try:
        given, logits = _run(model, layer, states, products)
    except Exception as error:  # a model's own code, which may fail in any way on stubs
        raise ValueError(NOT_ALONE) from error
    if given.shape != states.shape or logits.shape != products.shape:
        raise ValueError(NOT_ALONE)
    inputs = _factor(given, states)
    if inputs is None:
        raise ValueError("its output layer is given more than its last hidden states")
    scale = _factor(logits, products)
    if scale is not None:
        return LogitMap(inputs, scale)
    scale = float((logits / products)[products.abs() == PRODUCTS[0]].mean())
    capped = LogitMap(inputs, scale, cap=float(logits.abs().max()))
    if not torch.allclose(capped.logits(products), logits, rtol=TOLERANCE, atol=0):
        raise ValueError(
            "its logits are more than its output layer's product, a factor and a soft cap"
        )
    return capped


def _run(model: Any, layer: Any, states: Tensor, products: Tensor) -> tuple[Tensor, Tensor]:
    """Return what an output layer is given where the last hidden states are `states`, and the logits of `products`."""
    given: list[Tensor] = []

    def multiply(hidden: Tensor) -> Tensor:
        given.append(hidden.double())
        return products.clone()

    def below(*_: Any, **__: Any) -> _Below:
        return _Below(last_hidden_state=states)

    ids = torch.zeros(states.shape[:2], dtype=torch.long)
    with ExitStack() as stack, torch.no_grad():
        stack.enter_context(_replaced(layer, multiply))
        for module in below_output(model).modules():
            # OPT calls the decoder inside of its base model.
            if isinstance(module, PreTrainedModel):
                stack.enter_context(_replaced(module, below))
        logits = model(input_ids=ids, use_cache=False).logits.double()
    (only,) = given
    return only, logits


def _factor(values: Tensor, of: Tensor) -> float | None:
    """Return the factor between two tensors; None if there is none."""
    factor = float((values / of).median())
    if torch.allclose(values, factor * of, rtol=TOLERANCE, atol=0):
        return factor
    return None


@contextmanager
def _replaced(module: Any, forward: Any) -> Iterator[None]:
    """Replace a module's forward method, which may have been replaced before."""
    before = module.__dict__.get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if before is not None:
            module.forward = before
