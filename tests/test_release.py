"""The wheel, from an empty folder and without a checkout; and the files that a release needs."""

import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from importlib.util import find_spec

import pytest
import yaml

from dsnb.measure.launcher.environment import VARIABLES
from dsnb.version import __version__
from tests import ROOT
from tests.support.small_sweep import own_server

EXAMPLE = ROOT / "outputs" / "examples" / "quickstart"
CAN_TRAIN = find_spec("torch") is not None
WATCH = f"""\
import os, sys
log = os.open({{log!r}}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def watch(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and isinstance(arguments[0], (str, bytes, os.PathLike)):
        path = os.path.abspath(os.fsdecode(arguments[0])) + "/"
        if path.startswith({f"{ROOT}/"!r}) and not path.startswith({f"{ROOT}/.venv/"!r}):
            os.write(log, path.encode() + b"\\n")
sys.addaudithook(watch)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
        cwd=ROOT,
        check=True,
    )
    return next(folder.glob("dsnb-*.whl"))


@pytest.fixture(scope="module")
def run(wheel, tmp_path_factory):
    """Install the wheel into a separate environment with this one's libraries; run commands in an empty folder.

    Every process of that environment notes which files of the checkout it opens.
    """
    home = tmp_path_factory.mktemp("installed")
    python, folder, log = home / "env" / "bin" / "python", home / "empty", home / "opened"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home / "env"], check=True)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        wheel,
    ]
    subprocess.run(pip, check=True)
    (packages,) = (home / "env" / "lib").glob("python3*/site-packages")
    (packages / "watch.py").write_text(WATCH.format(log=str(log)))
    (packages / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\nimport watch\n")
    folder.mkdir()
    env = {
        name: value
        for name, value in own_server().items()
        if name not in {"PYTHONPATH", "DSNB_OUTPUTS"}
    }
    env |= {"PATH": f"{python.parent}:{env['PATH']}", "COLUMNS": "200"}
    env |= {
        "JUPYTER_PATH": f"{sys.prefix}/share/jupyter"
    }  # nbconvert's templates are in the other environment

    def run(command):
        log.unlink(missing_ok=True)
        done = subprocess.run(
            shlex.split(command), cwd=folder, env=env, capture_output=True, text=True, timeout=240
        )
        assert log.read_text() == ""  # and the file was made
        return done.returncode, done.stdout, done.stderr

    run.folder = folder
    return run


@pytest.mark.process
def test_the_wheel_holds_the_package_the_notebooks_and_the_params_files(wheel):
    files = {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "dsnb").rglob("*.*") if path.is_file()
    }
    files |= {f"dsnb/notebooks/{path.name}" for path in (ROOT / "notebooks").glob("*.ipynb")}
    files |= {f"dsnb/params/{path.name}" for path in (ROOT / "params").glob("*.*")}
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == {name for name in files if "__pycache__" not in name}


@pytest.mark.process
@pytest.mark.timeout(600)
def test_the_commands_of_the_readme_that_init_writes_work_from_an_empty_folder(run):
    assert run("dsnb sweep params/quickstart.yaml") == (
        1,
        "",
        "error: there is no folder 'params': `dsnb init` writes one, with params files in it\n",
    )
    code, out, _ = run("dsnb init")
    assert code == 0
    assert out.startswith(
        f"{run.folder}: notebooks, params and README.md, which says how to begin\n"
    )
    assert (
        CAN_TRAIN
        or "to train: pip install 'dsnb[train]'\nfor JupyterLab: pip install 'dsnb[lab]'\n" in out
    )
    written = {path: path.read_bytes() for path in run.folder.rglob("*.*") if path.is_file()}
    (block,) = re.findall(r"```sh\n(.*?)```", (run.folder / "README.md").read_text(), re.S)
    commands = [line.partition("#")[0].strip() for line in block.splitlines()]
    assert [command.split()[1] for command in commands] == [
        "doctor",
        "predict",
        "sweep",
        "sweep",
        "summary",
        "report",
    ]
    few = "--only zs0_* --set repeats=1 --set gpus=1 --set warmup_steps=1 --set steps=2"
    smaller = {"dsnb sweep params/quickstart.yaml": f" {few}"}
    # With torch, other tests run the first two; `.ci/pythons` runs all without torch. They take a minute.
    tested_elsewhere = ("dsnb doctor", "dsnb predict", "dsnb report") if CAN_TRAIN else ()
    for command in [command for command in commands if not command.startswith(tested_elsewhere)]:
        if command.startswith("dsnb summary") and not CAN_TRAIN:
            shutil.copytree(EXAMPLE, run.folder / "outputs" / "quickstart")
        code, out, err = run(command + smaller.get(command, ""))
        assert "Traceback" not in err
        if CAN_TRAIN or command.split()[1] in {"summary", "report"} or "--dry-run" in command:
            assert code == 0, (command, out, err)
        elif command == "dsnb doctor":
            assert code == 1
            assert (
                "missing  training: without torch, deepspeed, transformers -> pip install 'dsnb[train]'"
                in out
            )
        else:
            assert (code, out) == (1, "")
            assert err.endswith("pip install 'dsnb[train]'\n")
    if not CAN_TRAIN:
        assert (run.folder / "outputs" / "quickstart" / "report.html").stat().st_size > 500_000
    assert run("dsnb init")[2].endswith(
        " would be overwritten, so nothing was written: name another folder\n"
    )
    assert {path: path.read_bytes() for path in written} == written
    (run.folder / "read.py").write_text("import dsnb\nprint(len(dsnb.published('h200')) > 600)")
    assert run("python read.py") == (0, "True\n", "")


def test_citation_changelog_and_recipe_name_the_version():
    citation, recipe = (
        yaml.safe_load((ROOT / name).read_text()) for name in ("CITATION.cff", "conda/recipe.yaml")
    )
    assert citation["version"] == recipe["context"]["version"] == __version__
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert headings[:2] == ["Unreleased", f"{__version__}, {citation['date-released']}"]


def test_the_conda_recipe_asks_for_what_pip_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needs = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text())["requirements"]
    names = {"matplotlib": "matplotlib-base", "torch": "pytorch"}

    def conda(requirement):
        name = re.match(r"[\w-]+", requirement)[0]
        return f"{names.get(name, name)} {requirement.removeprefix(name)}"

    assert needs["run"] == [
        "__linux",
        f"python {project['requires-python']}",
        *map(conda, project["dependencies"]),
    ]
    assert needs["run_constraints"] == [*map(conda, project["optional-dependencies"]["train"])]


def test_workflows_run_the_checks_before_anything_is_published():
    ci, release = (
        yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text())
        for name in ("ci", "release")
    )
    assert {"run": ".ci/run"} in ci["jobs"]["run"]["steps"]
    assert release["jobs"]["check"]["uses"] == "./.github/workflows/ci.yml"
    assert release["jobs"]["publish"]["needs"] == ["check", "build"]
    assert release["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    site = yaml.safe_load((ROOT / ".readthedocs.yaml").read_text())
    assert (ROOT / site["sphinx"]["configuration"]).is_file()


def test_security_names_the_variables_that_are_recorded():
    told = (ROOT / "SECURITY.md").read_text()
    assert re.findall(
        r"`([A-Z]+_?)`", told.partition("names begin with")[2].partition(", with")[0]
    ) == [pattern.removesuffix("*") for pattern in VARIABLES["recorded"]]
