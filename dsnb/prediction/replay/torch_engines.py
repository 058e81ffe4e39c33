"""The allocations of one process, of ZeRO 0 with fp32 weights, which does the same, and of DDP."""

from dsnb.prediction.replay.allocator import MIB, Block
from dsnb.prediction.replay.step import Replay

FIRST_BUCKET, BUCKET = MIB, 25 * MIB
"""Bytes of gradients after which DDP closes its first bucket and the others (`torch.nn.parallel.distributed`)."""
REDUCED_AT_ONCE = 500_000_000
"""Gradients that DeepSpeed flattens at ZeRO 0 (`MEMORY_OPT_ALLREDUCE_SIZE`)."""


class Plain(Replay):
    """fp32 weights, a gradient and two moments for each, and a flat copy of gradients that several ranks reduce."""

    def __init__(self, *how: object) -> None:
        super().__init__(*how)  # type: ignore[arg-type]
        self.gradients: dict[int, Block] = {}
        self.has_states = False

    def prepare(self) -> None:
        """Build the model."""
        self.model()

    def step(self, number: int) -> None:
        """Gather gradients, reduce them and update the weights."""
        for _ in range(self.micro_batches):
            self.micro_batch(self._keep)
        if self.ranks > 1:
            self._reduce()
        self.update()
        self.free(self.gradients.values())
        self.gradients.clear()

    def update(self) -> None:
        """Let the optimizer make its moments in the first step, and what it needs besides in each."""
        if self.experiment.optimizer == "adafactor":
            self._adafactor()
        elif not self.has_states:
            for elements in self.elements.values():
                self.new(4 * elements)
                self.new(4 * elements)
        self.has_states = True

    def _adafactor(self) -> None:
        """Keep a number for each row and column of a matrix, for each element of a vector (`torch.optim.Adafactor`)."""
        for number, elements in self.elements.items():
            shape = self.tensors[number].shape
            if not self.has_states:
                for size in (shape[0], shape[1]) if len(shape) > 1 else (elements,):
                    self.new(4 * size)
            self.temporarily(4 * elements)

    def _keep(self, parameter: int, block: Block | None) -> bool:
        """Keep a gradient, or add it to the one that is there."""
        if parameter in self.gradients or block is None:
            return False
        self.gradients[parameter] = block
        return True

    def _reduce(self) -> None:
        flat = 0
        for elements in self.elements.values():
            flat += elements
            if flat > REDUCED_AT_ONCE:
                self.temporarily(self.width * flat)
                flat = 0
        self.temporarily(self.width * flat)


class Ddp(Plain):
    """Gradients are views of buckets, which are rebuilt in the order of the first backward pass."""

    def __init__(self, *how: object) -> None:
        super().__init__(*how)
        self._order: list[int] = []
        self._buckets: list[Block] = []
        self._last = False

    def prepare(self) -> None:
        """Build the model, and one bucket for the first step (`BucketCapacityConfig.compute_bucket_size_limits`)."""
        super().prepare()
        self._buckets = [self.new(4 * self.trained)]

    def step(self, number: int) -> None:
        """Gather gradients outside of the buckets until the last micro-batch, and inside with it."""
        if number == 1:
            self.free(self._buckets)
            self._build(self._order)
        for micro_batch in range(self.micro_batches):
            self._last = micro_batch == self.micro_batches - 1
            self.micro_batch(self._send)
        self.update()

    def _send(self, parameter: int, block: Block | None) -> bool:
        if not self._last:
            return self._keep(parameter, block)
        if parameter not in self._order:
            self._order.append(parameter)
        if parameter in self.gradients:
            self.free([self.gradients.pop(parameter)])
        return False

    def _build(self, order: list[int]) -> None:
        self._buckets, size, limit = [], 0, FIRST_BUCKET
        for parameter in order:
            size += 4 * self.elements[parameter]
            if size >= limit:
                self._buckets.append(self.new(size))
                size, limit = 0, 4 * self.experiment.bucket_elements or BUCKET
        if size:
            self._buckets.append(self.new(size))
