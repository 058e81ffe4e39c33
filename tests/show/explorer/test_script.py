"""The script of a page."""

from dsnb.show.explorer import page


def test_vega_is_bundled_once_and_kept_in_the_cache(monkeypatch, tmp_path):
    bundled = []

    def bundle():
        bundled.append(1)
        return "const vega = '\u2028';"

    monkeypatch.setattr(page, "_bundle", bundle)
    monkeypatch.setenv("DSNB_CACHE", str(tmp_path))
    assert page._vega() == page._vega() == "const vega = '\u2028';"
    assert len(bundled) == 1
    monkeypatch.setenv("DSNB_CACHE", "off")
    page._vega()
    assert len(bundled) == 2


def test_a_cache_that_cannot_be_written_is_not_used(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setattr(page, "_bundle", lambda: "vega")
    monkeypatch.setenv("DSNB_CACHE", str(tmp_path / "file"))
    assert page._vega() == "vega"
