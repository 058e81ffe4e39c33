from tests.workers.fakes import steps_of, write_environment


def main(run_dir: str) -> int:
    write_environment(run_dir)
    return steps_of(run_dir, [0.6, 0.32, 0.32, 0.64, 1.28])
