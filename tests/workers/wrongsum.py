def main(run_dir: str) -> int:
    """Test all-reduce where rank 1 has one element that is not what it says, from the fourth size on."""
    import os

    from dsnb.train import probe

    fill = probe.fill

    def wrong(buffer, factor):
        fill(buffer, factor)
        if factor == 2 and os.environ["RANK"] == "1" and len(buffer) == 16:
            buffer[5] += 1

    probe.fill = wrong
    return probe.main(run_dir)
