"""The allocations of DeepSpeed's optimizers at ZeRO 0 to 2, read in DeepSpeed 0.19.8 in the order they are made."""

from dsnb.prediction.engine import BUCKET
from dsnb.prediction.replay.allocator import Block
from dsnb.prediction.replay.step import Replay
from dsnb.prediction.replay.torch_engines import Plain
from dsnb.settings.derived import accumulates_in_fp32


class FlatMasters(Plain):
    """ZeRO 0 in native half precision (`FP16_Optimizer`): flat weights, flat masters and flat moments in fp32."""

    def prepare(self) -> None:
        """Flatten clones of the weights, which replace them, and make masters and moments."""
        weights = self.model()
        clones = [self.new(self.width * elements) for elements in self.elements.values()]
        self.new(self.width * self.trained)
        self.free(clones)
        self.free(weights[number] for number in self.elements)
        clone = self.new(self.width * self.trained)
        self.new(4 * self.trained)
        self.free([clone])
        self.free([self.new(4 * self.trained) for _ in range(3)])

    def update(self) -> None:
        """Cast the gradients to fp32 one by one, and flatten them."""
        cast = [self.new(4 * elements) for elements in self.elements.values()]
        flat = self.new(4 * self.trained)
        self.free(cast)
        self.free(self.gradients.values())
        self.gradients.clear()
        if not self.has_states:
            self.new(4 * self.trained)
            self.new(4 * self.trained)
            self.has_states = True
        self.free([flat])


class Partitioned(Replay):
    """ZeRO 1 and 2 (`DeepSpeedZeroOptimizer`): buckets of gradients, and a share of everything the update needs."""

    def __init__(self, *how: object) -> None:
        super().__init__(*how)  # type: ignore[arg-type]
        self.share = self.trained / self.ranks
        self.is_stage_2 = self.experiment.zero_stage == 2
        settings = vars(self.experiment)
        self.in_fp32 = accumulates_in_fp32(settings) and self.width == 2
        given = self.experiment.deepspeed.get("zero_optimization.reduce_bucket_size", 0)
        self.bucket = int(given or self.experiment.bucket_elements or BUCKET)
        casts = self.experiment.mixed_precision == "autocast" and self.experiment.precision in {"fp16", "bf16"}
        self.buckets = 2 if casts and not self.experiment.lora_rank else 1
        ends, self.own = 0, set[int]()
        for number, elements in self.elements.items():
            ends += elements
            if ends > self.rank * self.share and ends - elements < (self.rank + 1) * self.share:
                self.own.add(number)
        self.has_states = False
        self._gradients: dict[int, Block] = {}
        self._oversized: dict[int, Block] = {}
        self._in_bucket: list[int] = []
        self._allocated: list[Block] = []
        self._reduced: Block | None = None

    def prepare(self) -> None:
        """Flatten the weights, and clone the rank's share of them as masters in fp32."""
        weights = self.model()
        self.allocator.empty_cache()
        self.new(self.width * self.trained)
        self.free(weights[number] for number in self.elements)
        clone = self.new(self.width * self.share)
        if self.width < 4:
            self.new(4 * self.share)
            self.free([clone])
        self.temporarily(4 * self.share)

    def step(self, number: int) -> None:
        """Send gradients through the bucket: at ZeRO 2 as they come, at ZeRO 1 after the last backward pass."""
        accumulated: Block | None = None
        for micro_batch in range(self.micro_batches):
            last = micro_batch == self.micro_batches - 1
            self.micro_batch(self._send if self.is_stage_2 else self._keep)
            if last and not self.is_stage_2:
                self._send_all()
            if last or self.is_stage_2:
                self._reduce()
                self.free(self._allocated)
                self._allocated = []
            if self.is_stage_2 and not self.in_fp32:
                accumulated = self._added(accumulated)
        self._update(self._reduced if accumulated is None else accumulated)
        self._reduced = None

    def _added(self, accumulated: Block | None) -> Block | None:
        """Return the gradients of all micro-batches so far; those of this one are freed if they were added to some."""
        found, self._reduced = self._reduced, None
        if accumulated and found:
            self.free([found])
        return accumulated or found

    def _begin(self) -> None:
        if not self._allocated:
            self._allocated = [self.new(self.width * self.bucket) for _ in range(self.buckets)]

    def _keep(self, parameter: int, block: Block | None) -> bool:
        self._begin()
        if parameter in self._gradients or block is None:
            return False
        self._gradients[parameter] = block
        return True

    def _send(self, parameter: int, block: Block | None) -> bool:
        """Copy a gradient to the bucket; one that is larger is reduced where it is."""
        self._begin()
        elements = self.elements[parameter]
        if sum(self.elements[one] for one in self._in_bucket) + elements > self.bucket:
            self._reduce()
        self._in_bucket.append(parameter)
        if elements <= self.bucket or block is None:
            return False
        self._oversized[parameter] = block
        return True

    def _send_all(self) -> None:
        for parameter in self.elements:
            if (block := self._gradients.pop(parameter, None)) and not self._send(parameter, block):
                self.free([block])

    def _reduce(self) -> None:
        """Reduce what is in the bucket, flattened if it is of several ranks, and copy the rank's share out of it."""
        sent, self._in_bucket = self._in_bucket, []
        if sent and self.in_fp32 and not self._reduced:
            self._reduced = self.new(4 * self.share)
        slices = len(sent) if self.in_fp32 else len({one in self.own for one in sent})
        flat = [self.new(self.width * sum(self.elements[one] for one in sent))] if slices > 1 else []
        for one in self.own.intersection(sent) if self.in_fp32 else ():
            self.temporarily(4 * self.elements[one])
        self.free(flat)
        if not self._reduced and self.own.intersection(sent):
            self._reduced = self.new(self.width * sum(self.elements[one] for one in self.own))
        self.free(self._oversized.pop(one) for one in sent if one in self._oversized)

    def _update(self, gradients: Block | None) -> None:
        """Take norms in fp64, flatten the share of the gradients, cast it to fp32, and update the share."""
        if self.experiment.gradient_checks == "on":
            for one in self.own:
                self.temporarily(8 * self.elements[one])
        if not self.in_fp32:
            flat = self.new(self.width * self.share)
            if self.width < 4:
                cast = self.new(4 * self.share)
                self.free([flat])
                flat = cast
            self.free([gradients] if gradients else [])
            gradients = flat
        if not self.has_states:
            self.new(4 * self.share)
            self.new(4 * self.share)
            self.has_states = True
        self.free([gradients] if gradients else [])


class Accumulating(Replay):
    """ZeRO 1 that accumulates in fp32 (`BF16_Optimizer`): flat gradients in fp32 beside those of the backward pass."""

    def __init__(self, *how: object) -> None:
        super().__init__(*how)  # type: ignore[arg-type]
        self._gradients: set[int] = set()
        self.has_states = False

    def prepare(self) -> None:
        """Flatten the weights, and make masters of the rank's share and gradients of all weights."""
        share = self.trained / self.ranks
        weights = self.model()
        self.new(self.width * self.trained)
        self.free(weights[number] for number in self.elements)
        clone = self.new(self.width * share)
        self.new(4 * share)
        self.free([clone])
        self.new(4 * self.trained)

    def step(self, number: int) -> None:
        """Add each micro-batch's gradients, which are zeroed and not freed, to those in fp32, and update the share."""
        for _ in range(self.micro_batches):
            self.micro_batch(self._keep)
            for elements in self.elements.values():
                self.temporarily(4 * elements)
        if self.ranks > 1:
            self.temporarily(self.width * self.trained)
        if not self.has_states:
            self.new(4 * self.trained / self.ranks)
            self.new(4 * self.trained / self.ranks)
            self.has_states = True

    def _keep(self, parameter: int, block: Block | None) -> bool:
        if parameter in self._gradients or block is None:
            return False
        self._gradients.add(parameter)
        return True
