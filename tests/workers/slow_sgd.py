from tests.workers import sgd


def main(run_dir: str) -> int:
    """Descend slowly: at the usual rate ten steps of GPT-2 turn bf16's rounding of 0.001 into 0.1."""
    return sgd.main(run_dir, rate=0.01)
