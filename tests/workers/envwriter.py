from tests.workers.fakes import write_environment


def main(run_dir: str) -> int:
    return write_environment(run_dir)
