"""How wrong predictions are for families of models that no run of the fit has.

`python -m benchmarks.left_out_families` writes the errors of step times and of peaks of memory, by
family and of all of them, to `dsnb/prediction/tuned.toml`, and which families these are. A family
that was never measured is given the errors of all of them. Models are traced first, for a minute.
"""

from benchmarks import tuning
from benchmarks.other_estimates import Peak
from benchmarks.prediction_errors import (
    errors_of,
    of_left_out_families,
    of_peaks,
    peaks,
    write_errors,
)
from dsnb.prediction import gpus
from dsnb.prediction.accuracy import (
    FAMILY,
    GPU,
    LEFT_OUT,
    PredictionError,
    grouped,
    is_fitted,
    kinds_of_family,
)
from dsnb.prediction.calibration import Measured, limited_by_cpu
from dsnb.prediction.shapes import shape
from dsnb.prediction.step_time import stack


def by_family(runs: list[Measured]) -> dict[str, PredictionError]:
    """Return the errors of runs of families left out of the fit, by family and by what limits them."""
    limits = limited_by_cpu(stack([run.counts for run in runs]))
    families = [shape(run.experiment.model).family for run in runs]
    names = [
        kinds_of_family(family, bool(by_cpu))
        for family, by_cpu in zip(families, limits, strict=True)
    ]
    return grouped(names, errors_of(runs))


def by_family_of_peak(peaks: list[Peak]) -> dict[str, PredictionError]:
    """Return the errors of predicted peaks of families left out of the fit of times, and of all of these."""
    families = [shape(peak.experiment.model).family for peak in peaks]
    of_left_out = [
        (peak, family)
        for peak, family in zip(peaks, families, strict=True)
        if not is_fitted(family)
    ]
    return of_peaks([peak for peak, _ in of_left_out], [name for _, name in of_left_out], LEFT_OUT)


def covered(runs: list[Measured]) -> dict[str, list[str]]:
    """Return the GPUs and families of runs."""
    return {
        GPU: sorted({gpus.find(run.gpu_name).name for run in runs}),
        FAMILY: sorted({shape(run.experiment.model).family for run in runs}),
    }


def main() -> None:
    """Write the errors of step times and of peaks, and the families."""
    runs = of_left_out_families()
    write_errors("families", by_family(runs))
    tuning.write_rows("covered.left_out", covered(runs))
    by_name = {name: error[:3] for name, error in by_family_of_peak(peaks()).items()}
    tuning.write_rows("errors.family_peaks", by_name)


if __name__ == "__main__":
    main()
