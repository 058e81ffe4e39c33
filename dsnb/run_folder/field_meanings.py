"""What the fields of a run's files mean, where they are not columns of the tables: the text of the reference.

Files that hold settings or columns (`experiment.json`, `steps.jsonl`, `gpu.jsonl`) are described by those.
"""

FIELDS: dict[str, dict[str, str]] = {
    "experiment.json": {
        "name": "Name of the experiment; its folder is named like this.",
        "asked": "Settings as requested, where dsnb replaced them, such as `micro_batch_size: auto`.",
    },
    "result.json": {
        "status": "How the run ended.",
        "cause": "Why it is not `ok`, in one sentence.",
        "exit_codes": "Exit code of each rank; negative for a signal.",
        "phases_s": "Wall time by phase: start, build, warmup, timed, stop, wall.",
        "summary": "Figures of the run, named like the columns of the table of runs.",
    },
    "environment.json": {
        "os": "Operating system.",
        "memory_gib": "Memory of the machine.",
        "gpus": "Name and memory of each GPU.",
        "nccl_package": "Version of the installed NCCL package.",
    },
    "worker.json": {
        "layers": "Transformer blocks of the model.",
        "hidden": "Hidden size of the model.",
        "cpu_threads": "Threads of a rank that compute on the CPU, an offloaded optimizer among them.",
        "block_parameters": "Parameters of all transformer blocks, without embeddings, output layer and final norm.",
        "steps_from_s": "Begin of the first step, since the launch.",
        "timed_from_s": "Begin of the timed steps, since the launch.",
        "timed_to_s": "End of the timed steps, since the launch.",
        "timed_wall_s": "Wall time of the timed steps, as earlier versions recorded it; now in `phases_s`.",
        "ended_s": "End of the last step, since the launch.",
        "first_bad_step": "First step whose loss was not a finite number.",
        "weights_moved": "False if the steps did not change the weights beyond weight decay.",
        "attention": "Attention implementation that the model really used.",
        "attention_kernel": "Kernel that computed attention in a warm-up step.",
        "phases_s": "Wall time by phase, as rank 0 measured it.",
        "versions": "Versions that only torch knows: CUDA, NCCL.",
    },
    "profile.json": {
        "handover_s": "Communication between pipeline stages.",
        "between_s": "Rest of the step between the marked parts.",
        "step_s": "Time of the step that was split into its parts.",
        "exposed_communication_s": "Communication during which no other kernel ran; GPUs only.",
        "traced_step_s": "Time of the step that was traced.",
        "ended_s": "End of the profile, since the launch.",
        "missing": "What could not be measured, with the reason.",
    },
    "failures.jsonl": {
        "rank": "Rank that failed.",
        "status": "Status that its failure gives the run.",
        "cause": "Type and first line of the exception.",
        "phase": "Part of the work it was in: build, forward, loss, backward, optimizer, communication.",
        "step": "Step it was in, from 1; missing while the model was built.",
        "allocated_gib": "Memory allocated when the allocation failed.",
        "reserved_gib": "Memory reserved when the allocation failed.",
        "requested_gib": "Size of the allocation that failed.",
    },
    "nodes.json": {
        "nodes": "For each host: name, address, interface, ranks, GPUs, exit codes, environment, and why it was lost.",
        "differences": "In what the hosts differ, such as driver or torch version.",
    },
    "slurm.json": {
        "name": "Name of the Slurm job.",
        "job": "Number of the Slurm job.",
        "state": "Last known state of the job.",
        "script": "Script that was submitted.",
    },
    "bandwidth.json": {"most_bytes": "Largest message to measure."},
    "bandwidth.jsonl": {
        "bytes": "Size of the message.",
        "count": "Elements of the message.",
        "dtype": "Type of the elements.",
        "ranks": "Ranks that took part.",
        "calls": "All-reduces that were timed.",
        "time_us": "Mean time of one all-reduce on the slowest rank.",
        "algbw_gb_per_s": "Bytes of the message over its time.",
        "busbw_gb_per_s": "algbw x 2(n - 1)/n, as nccl-tests defines it.",
        "errors": "Elements with a wrong sum.",
    },
}
