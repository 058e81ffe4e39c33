"""6 FLOPs for each parameter and token, at 40 % of the GPU's peak: the rule of thumb for training time.

6ND is from Kaplan et al. 2020 (arXiv:2001.08361, section 2.1). 40 % was chosen before anything was
scored: it is the middle of the 38 to 43 % that Llama 3 reports (Dubey et al. 2024,
arXiv:2407.21783, table 4), between the 30 % of Megatron-Turing NLG and the 46 % of PaLM (Chowdhery
et al. 2022, arXiv:2204.02311, table 3).
"""

from benchmarks.planners.question import Answer, Question, RowPlanner

FLOPS = 6
"""Of a parameter and token, forward and backward."""
MFU = 0.4


class SixND(RowPlanner):
    """6ND with a usual MFU."""

    name = "6nd"
    title = "6ND at 40 % MFU"
    source = "https://arxiv.org/abs/2001.08361"
    version = "2020"
    claims = "speed of full training"
    memory_of = ""
    command = "python -m benchmarks.planners predict 6nd"

    def answer(self, question: Question) -> Answer:
        """Return the speed of one row."""
        if question.is_lora:
            return Answer(why_not="the rule is for training of all parameters, not for LoRA")
        peak_flops = 1e12 * question.gpu.half_tflops
        flops_per_token = FLOPS * question.model.parameters
        return Answer(tokens_per_s=MFU * peak_flops / flops_per_token)
