def main(run_dir: str) -> int:
    """Train, and end at once where Python asks any host of a network, having written down which."""
    import os
    import socket
    from pathlib import Path

    from dsnb.train import worker

    def caught(*asked):
        (Path(run_dir) / "asked").write_text(repr(asked))
        os._exit(9)

    socket.getaddrinfo = caught
    socket.socket.connect = caught
    return worker.main(run_dir)
