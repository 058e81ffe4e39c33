from tests.workers.fakes import hang_with_a_child


def main(run_dir: str) -> int:
    return hang_with_a_child(run_dir)
