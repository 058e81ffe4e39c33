"""Rules: they read only settings that exist (`test_refusals.py` has what they refuse)."""

import ast

import pytest

from dsnb.settings import checks
from dsnb.settings.experiment import Experiment
from dsnb.settings.strategies import base
from dsnb.settings.strategies.deepspeed import ONLY_ZERO
from dsnb.settings.tables import REFUSALS
from tests import ROOT

SETTINGS = ROOT / "dsnb" / "settings"
MODULES = [SETTINGS / "rules.py", SETTINGS / "checks.py", *(SETTINGS / "strategies").glob("*.py")]


def misspelled(s):
    if s.zero_stgae == 3:
        yield "never"


def test_a_rule_with_a_misspelled_name_fails(monkeypatch):
    monkeypatch.setattr(checks, "RULES", [misspelled])
    with pytest.raises(AttributeError, match="zero_stgae"):
        Experiment()
    with pytest.raises(AttributeError, match="zero_stgae"):
        Experiment(zero_stage=7)  # the rule is not taken for one that reads the invalid setting


def test_a_pair_with_a_misspelled_name_fails(monkeypatch):
    monkeypatch.setitem(REFUSALS["exclusive"], "lora_rnk", {"compile": "of a typo"})
    with pytest.raises(KeyError, match="lora_rnk"):
        Experiment()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_every_name_that_a_rule_reads_is_a_setting_or_a_property(path):
    """In branches that no test reaches, too."""
    nodes = ast.walk(ast.parse(path.read_text()))
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    read = {node.attr for node in attributes if getattr(node.value, "id", "") == "s"}
    assert [
        name
        for name in read
        if name not in Experiment.model_fields and not hasattr(Experiment, name)
    ] == []


def test_tables_of_rules_name_settings():
    pairs = REFUSALS["exclusive"]
    names = {*base.USED_BY, *ONLY_ZERO, *REFUSALS["keys_of_settings"], *pairs}.union(
        *pairs.values()
    )
    assert names <= set(Experiment.model_fields)
