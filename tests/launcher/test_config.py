"""The configuration that DeepSpeed gets."""

from dsnb.launcher.config import deepspeed_config
from dsnb.settings.experiment import Experiment


def test_no_op_is_compiled_for_a_cpu():
    assert deepspeed_config(Experiment(device="cpu"))["optimizer"]["params"]["torch_adam"] is True
    assert "torch_adam" not in deepspeed_config(Experiment(device="cuda"))["optimizer"]["params"]


def test_a_home_folder_is_written_out_for_deepspeed(monkeypatch):
    """DeepSpeed would make a folder that is named `~`."""
    monkeypatch.setenv("HOME", "/home/someone")
    config = deepspeed_config(Experiment(zero_stage=3, offload="all-nvme", nvme_path="~/swap"))
    assert config["zero_optimization"]["offload_param"]["nvme_path"] == "/home/someone/swap"
