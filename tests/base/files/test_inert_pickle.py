"""Pickles that are read without being run: their values, objects that stay inert, and files that are hostile."""

import io
import os
import pickle
import random
import time
import zipfile

import pytest

from dsnb.base.files import inert_pickle
from dsnb.base.files.inert_pickle import ERRORS, Inert, plain

VALUES = {
    "none": None,
    "truth": [True, False],
    "numbers": (1, -2, 2**40, 2.5, 10**30),
    "texts": ["a", "ü", "x" * 300],
    "nested": {"a": {"b": [1, {"c": ()}]}, 3: (1, 2), "four": (1, 2, 3, 4)},
}


class Arguments:
    """Arguments of a training, as a Trainer saves them."""

    def __init__(self, **values):
        self.__dict__.update(values)


class Hostile:
    """Runs a command where a pickle is loaded."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def saved(tmp_path, content, name="archive/data.pkl"):
    """Return a file as torch saves it: an archive with a pickle."""
    path = tmp_path / "training_args.bin"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, content)
    return path


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_values_and_states_are_read_at_every_protocol(tmp_path, protocol):
    arguments = Arguments(**VALUES, inner=Arguments(size=8))
    read = inert_pickle.read(saved(tmp_path, pickle.dumps(arguments, protocol)))
    inner = read.state.pop("inner")
    assert read.state == VALUES
    assert inner.state == {"size": 8}
    if protocol >= 2:
        assert read.name.endswith("test_inert_pickle.Arguments")


def test_a_file_without_an_archive_is_read_after_the_numbers_of_old_versions(tmp_path):
    path = tmp_path / "training_args.bin"
    parts = [0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, Arguments(seed=7), ["key"]]
    path.write_bytes(b"".join(pickle.dumps(part, 2) for part in parts))
    assert inert_pickle.read(path).state == {"seed": 7}


def test_nothing_is_run(tmp_path):
    trace = tmp_path / "trace"
    arguments = Arguments(seed=7, evil=Hostile(f"touch {trace}"))
    for content in (pickle.dumps(arguments), pickle.dumps(Hostile(f"touch {trace}"), 0)):
        read = inert_pickle.read(saved(tmp_path, content))
        assert not trace.exists()
    assert read.name == f"{os.system.__module__}.system"
    evil = inert_pickle.read(saved(tmp_path, pickle.dumps(arguments))).state["evil"]
    assert evil.args == (f"touch {trace}",)
    pickle.loads(pickle.dumps(arguments))  # the command works
    assert trace.exists()


def test_a_name_is_only_text(tmp_path):
    text = b'cbuiltins\neval\n(S\'open("x", "w")\'\ntR.'
    read = inert_pickle.read(saved(tmp_path, text))
    assert read.name == "builtins.eval"
    assert plain(read) == 'open("x", "w")'


def test_a_small_file_takes_little_memory_and_time(tmp_path):
    laughs = b"]q\x00" + b"".join(b"](h%ch%ceq%c" % (n, n, n + 1) for n in range(60)) + b"."
    far = b"\x80\x02}r\xff\xff\xff\x7fj\xff\xff\xff\x7f."
    deep = b"\x80\x02}" + b")" + b"\x85" * 100_000 + b"K\x01s."
    began_s = time.process_time()
    for content in (laughs, far, deep):
        inert_pickle.read(saved(tmp_path, content))
    assert time.process_time() - began_s < 5


def test_a_large_pickle_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(inert_pickle, "MAX_BYTES", 100)
    path = saved(tmp_path, pickle.dumps("x" * 200))
    with pytest.raises(ValueError, match="usual size"):
        inert_pickle.read(path)
    path.write_bytes(pickle.dumps("x" * 200))
    with pytest.raises(ValueError, match="too large"):
        inert_pickle.read(path)


@pytest.mark.draws
def test_damaged_files_raise_errors_that_are_expected(tmp_path):
    chance = random.Random(0)
    whole = pickle.dumps(Arguments(**VALUES))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a/data.pkl", whole)
    path = tmp_path / "training_args.bin"
    for content in (whole, buffer.getvalue()):
        for _ in range(300):
            raw = bytearray(content)
            for place in chance.choices(range(len(raw)), k=3):
                raw[place] = chance.randrange(256)
            path.write_bytes(raw[: chance.randrange(len(raw) + 1)])
            try:
                inert_pickle.read(path)
            except ERRORS:
                continue


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Inert("a.Strategy", ("steps",)), "steps"),
        (Inert("torch.float16"), "torch.float16"),
        (3, 3),
        (None, None),
    ],
)
def test_members_of_enumerations_are_their_values(value, expected):
    assert plain(value) == expected


def test_an_object_that_is_built_very_often_takes_little_time(tmp_path):
    state = pickle.dumps({f"key{number}": number for number in range(20_000)}, protocol=2)[:-1]
    content = b"\x80\x02c" + b"a\nB\n" + b")\x81" + state[2:] + b"q\xffb" + b"h\xffb" * 3_000 + b"."
    began = time.process_time()
    inert_pickle.read(saved(tmp_path, content))
    assert time.process_time() - began < 2.0
