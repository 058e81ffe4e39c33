"""Sentences are data: a template, facts, a role; answers find them by role and escape them in HTML."""

import pandas as pd

from dsnb.results.answers.answer import Answer
from dsnb.results.answers.sentences import CARD, say


def test_a_sentence_is_its_text_and_keeps_its_facts():
    sentence = say("note.too_slow", too_slow=2)
    assert sentence == "2 settings are left out: they take more than 365 days."
    assert (sentence.role, sentence.facts) == ("note", {"too_slow": 2})
    assert say("note.too_slow", too_slow=1).startswith("1 setting is left out: it takes")


def test_a_sentence_without_a_needed_fact_is_empty_and_an_optional_part_is_left_out():
    assert say("note.too_slow") == ""
    facts = {"changes": "FSDP", "difference": "5.0 % slower"}
    assert say("alternative", **facts) == "Alternative: FSDP: 5.0 % slower."
    assert say("alternative", need="12", **facts) == "Alternative: FSDP: 5.0 % slower, 12 GiB."


def test_the_unit_of_the_hardware_is_a_fact():
    facts = {"held": "8", "at_hand": "2"}
    for unit in ("GPU", "rank"):
        assert say("headline.no_batch", unit=unit, **facts).endswith(f"on 2 {unit}s or fewer.")


def test_verdicts_are_among_the_templates_of_the_page():
    assert {"verdict.likely", "verdict.none", "headline", "costs"} <= {*CARD}


def test_an_answer_finds_sentences_by_role_and_shows_them_escaped():
    hostile = say("outside", outside="<b>new & odd</b>")
    answer = Answer("<i>task", pd.DataFrame(), (say("allocator"), hostile))
    assert answer.about("outside") == [hostile]
    assert str(answer).splitlines()[1] == "Less certain than usual: <b>new & odd</b>."
    shown = answer._repr_html_()
    assert shown.startswith("<h3>&lt;i&gt;task</h3><ul><li>")
    assert "&lt;b&gt;new &amp; odd&lt;/b&gt;" in shown
    assert "<b>" not in shown
