"""Titles of published data: every table and every sweep in it has one, and none is the name of a file."""

import dsnb
from dsnb.results.literature.tables import FOREIGN, OWN
from dsnb.results.runs import labels, sources


def test_every_published_table_has_a_title_and_an_author():
    assert set(sources.DATA) == {*FOREIGN, *OWN}
    titles = [labels.axis("source").label(f"published: {name}") for name in sources.DATA]
    assert len(set(titles)) == len(titles)
    for source in sources.DATA.values():
        assert source.title
        assert source.by
        assert source.link == "" or source.link.startswith("https://")


def test_every_sweep_of_a_published_table_has_a_title():
    for name in (*FOREIGN, *OWN):
        for sweep in dsnb.published(name)["sweep"].unique():
            assert "_" not in labels.axis("sweep").label(sweep)


def test_a_sweep_of_the_reader_keeps_its_name():
    assert labels.axis("sweep").label("my_sweep") == "my_sweep"
