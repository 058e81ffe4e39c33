"""Logs that are easily read wrongly, in the words of their programs; each has an answer that one can work out by hand."""
# ruff: noqa: E501  (programs print lines as long as they like)

LOGS = {
    "rlhf_step3": """\
cmd = deepspeed main.py --actor_model_name_or_path out/step1 --critic_model_name_or_path out/step2 --per_device_training_batch_size 4 --max_answer_seq_len 256 --max_prompt_seq_len 256 --gradient_accumulation_steps 1 --deepspeed --actor_zero_stage 2 --critic_zero_stage 2
***** Running training *****
[2023-04-18 08:48:32,000] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[1e-05, 1e-05], mom=[(0.9, 0.95), (0.9, 0.95)]
[2023-04-18 08:48:32,000] [INFO] [timer.py:199:stop] epoch=0/micro_step=10/global_step=10, RunningAvgSamplesPerSec=88.0, CurrSamplesPerSec=80.0, MemAllocated=10.0GB, MaxMemAllocated=20.0GB
epoch: 0|step: 9|ppo_ep: 1|act_loss: 0.2|cri_loss: 0.1|unsuper_loss: 0.0
|E2E latency=4.00s |Gather latency=0.00s (0.00%) |Generate time=3.00s (75.00%) |Training time=0.75s (18.75%) |Others=0.25 (6.25%)|CurSamplesPerSec=16.00 |AvgSamplesPerSec=16.00
[2023-04-18 08:49:12,000] [INFO] [logging.py:96:log_dist] [Rank 0] step=20, skipped=0, lr=[1e-05, 1e-05], mom=[(0.9, 0.95), (0.9, 0.95)]
[2023-04-18 08:49:12,000] [INFO] [timer.py:199:stop] epoch=0/micro_step=20/global_step=20, RunningAvgSamplesPerSec=88.0, CurrSamplesPerSec=80.0, MemAllocated=10.0GB, MaxMemAllocated=20.0GB
epoch: 0|step: 19|ppo_ep: 1|act_loss: 0.2|cri_loss: 0.1|unsuper_loss: 0.0
|E2E latency=4.00s |Gather latency=0.00s (0.00%) |Generate time=3.00s (75.00%) |Training time=0.75s (18.75%) |Others=0.25 (6.25%)|CurSamplesPerSec=16.00 |AvgSamplesPerSec=16.00
""",
    "gpus_not_logged": """\
cmd = deepspeed main.py --model_name_or_path facebook/opt-350m --per_device_train_batch_size 4 --max_seq_len 512 --gradient_accumulation_steps 1 --zero_stage 0 --deepspeed
***** Running training *****
[2023-04-18 03:36:10,000] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[1e-05], mom=[(0.9, 0.95)]
[2023-04-18 03:36:10,000] [INFO] [timer.py:199:stop] epoch=0/micro_step=10/global_step=10, RunningAvgSamplesPerSec=216.0, CurrSamplesPerSec=216.0, MemAllocated=3.0GB, MaxMemAllocated=12.0GB
[2023-04-18 03:36:13,000] [INFO] [logging.py:96:log_dist] [Rank 0] step=20, skipped=0, lr=[1e-05], mom=[(0.9, 0.95)]
[2023-04-18 03:36:13,000] [INFO] [timer.py:199:stop] epoch=0/micro_step=20/global_step=20, RunningAvgSamplesPerSec=216.0, CurrSamplesPerSec=216.0, MemAllocated=3.0GB, MaxMemAllocated=12.0GB
""",
    "eight_gpus": """\
cmd = deepspeed main.py --model_name_or_path facebook/opt-350m --per_device_train_batch_size 2 --max_seq_len 512 --gradient_accumulation_steps 1 --zero_stage 0 --deepspeed
[2023-04-18 03:35:55,997] [INFO] [launch.py:146:main] WORLD INFO DICT: {'n1': [0, 1, 2, 3, 4, 5, 6, 7]}
***** Running training *****
[2023-04-18 03:36:10,000] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[1e-05], mom=[(0.9, 0.95)]
[2023-04-18 03:36:10,000] [INFO] [timer.py:199:stop] epoch=0/micro_step=10/global_step=10, RunningAvgSamplesPerSec=46.0, CurrSamplesPerSec=46.0, MemAllocated=3.0GB, MaxMemAllocated=12.0GB
[2023-04-18 03:36:13,000] [INFO] [logging.py:96:log_dist] [Rank 0] step=20, skipped=0, lr=[1e-05], mom=[(0.9, 0.95)]
[2023-04-18 03:36:13,000] [INFO] [timer.py:199:stop] epoch=0/micro_step=20/global_step=20, RunningAvgSamplesPerSec=46.0, CurrSamplesPerSec=46.0, MemAllocated=3.0GB, MaxMemAllocated=12.0GB
""",
    "bars_without_words": """\
  0%|          | 0/500 [00:00<?, ?it/s]
{'loss': 2.1, 'learning_rate': 1e-05, 'epoch': 0.01}
{'loss': 2.0, 'learning_rate': 1e-05, 'epoch': 0.02}
{'train_runtime': 200.0, 'train_samples_per_second': 20.0, 'train_steps_per_second': 2.5, 'train_loss': 2.05, 'epoch': 0.02, 'num_input_tokens_seen': 4096000}
""",
    "out_of_memory": """\
Loading checkpoint shards: 100%|##########| 2/2 [00:08<00:00,  4.00s/it]
  0%|          | 0/500 [00:00<?, ?it/s]Traceback (most recent call last):
  File "train.py", line 88, in <module>
    trainer.train()
  File "transformers/trainer.py", line 2052, in train
    return inner_training_loop(
torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.14 GiB
  0%|          | 0/500 [00:03<?, ?it/s]
""",
    "megatron_swiglu": """\
using world size: 8, data-parallel size: 8, context-parallel size: 1, hierarchical context-parallel sizes: None, tensor-model-parallel size: 1, pipeline-model-parallel size: 1
------------------------ arguments ------------------------
  add_bias_linear ................................. False
  ffn_hidden_size ................................. 14336
  global_batch_size ............................... 32
  group_query_attention ........................... True
  hidden_size ..................................... 4096
  micro_batch_size ................................ 1
  num_attention_heads ............................. 32
  num_layers ...................................... 32
  num_query_groups ................................ 8
  params_dtype .................................... torch.bfloat16
  seq_length ...................................... 8192
  swiglu .......................................... True
  train_iters ..................................... 100
  untie_embeddings_and_output_weights ............. True
  world_size ...................................... 8
-------------------- end of arguments ---------------------
 > padded vocab (size: 128256) with 0 dummy tokens (new size: 128256)
 > number of parameters on (tensor, pipeline) model parallel rank (0, 0): 8030261248
 [2026-01-01 10:00:10] iteration        1/     100 | consumed samples:           32 | elapsed time per iteration (ms): 9000.0 | learning rate: 1.000000E-05 | global batch size:    32 | lm loss: 1.200000E+01 | loss scale: 1.0 | grad norm: 1.0 | number of skipped iterations:   0 | number of nan iterations:   0 |
 [2026-01-01 10:00:18] iteration        2/     100 | consumed samples:           64 | elapsed time per iteration (ms): 8000.0 | learning rate: 2.000000E-05 | global batch size:    32 | lm loss: 1.190000E+01 | loss scale: 1.0 | grad norm: 1.0 | number of skipped iterations:   0 | number of nan iterations:   0 |
 [2026-01-01 10:00:26] iteration        3/     100 | consumed samples:           96 | elapsed time per iteration (ms): 8000.0 | learning rate: 3.000000E-05 | global batch size:    32 | lm loss: 1.180000E+01 | loss scale: 1.0 | grad norm: 1.0 | number of skipped iterations:   0 | number of nan iterations:   0 |
 [Rank 0] (before save_checkpoint for iteration 3) memory (MB) | allocated: 4096.00 | max allocated: 40960.00 | reserved: 12288.00 | max reserved: 51200.00
""",
    "no_bars": """\
***** Running training *****
  Instantaneous batch size per device = 8
  Total train batch size (w. parallel, distributed & accumulation) = 64
  Gradient Accumulation steps = 2
  Total optimization steps = 1,000
{'loss': 2.1, 'grad_norm': 1.2, 'learning_rate': 1e-05, 'epoch': 0.01}
{'loss': 2.0, 'grad_norm': 1.1, 'learning_rate': 1e-05, 'epoch': 0.02}
""",
    "nan_gradient": """\
{'loss': 2.1, 'grad_norm': 1.2, 'learning_rate': 1e-05, 'epoch': 0.01}
{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.02}
{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.03}
{'train_runtime': 200.0, 'train_samples_per_second': 20.0, 'train_steps_per_second': 2.5, 'train_loss': 0.7, 'epoch': 0.03}
""",
    "neox": """\
-------------------- arguments --------------------
  data_parallel_size .............. 4...........................updated
  hidden_size ..................... 1024........................updated
  num_layers ...................... 24..........................updated
  seq_length ...................... 2048........................updated
  train_batch_size ................ 32..........................updated
  train_micro_batch_size_per_gpu .. 4...........................updated
  gradient_accumulation_steps ..... 2...........................updated
  precision ....................... fp16........................updated
  model_parallel_size ............. 1...........................default
  pipe_parallel_size .............. 1...........................updated
  zero_stage ...................... 1...........................updated
  checkpoint_activations .......... True........................updated
---------------- end of arguments ----------------
> building train, validation, and test datasets ...
 samples/sec: 16.000 | iteration       10/     100 | elapsed time per iteration (ms): 2000.0 | learning rate: 1.000E-04 | approx flops per GPU: 60.5TFLOPS | lm_loss: 9.000000E+00 | loss scale: 65536.0 | number of skipped iterations:   0 | number of nan iterations:   0 |
 samples/sec: 16.000 | iteration       20/     100 | elapsed time per iteration (ms): 2000.0 | learning rate: 2.000E-04 | approx flops per GPU: 60.5TFLOPS | lm_loss: 8.000000E+00 | loss scale: 65536.0 | number of skipped iterations:   0 | number of nan iterations:   0 |
""",
    "swift_json": """\
{"loss": 3.0, "grad_norm": 1.0, "learning_rate": 1e-06, "token_acc": 0.5, "epoch": 0.5, "global_step/max_steps": "1/2", "elapsed_time": "1m 0s", "memory(GiB)": 20.0, "train_speed(s/it)": 60.0}
{"loss": 2.5, "grad_norm": 1.0, "learning_rate": 2e-06, "token_acc": 0.5, "epoch": 1.0, "global_step/max_steps": "2/2", "elapsed_time": "2m 0s", "memory(GiB)": 20.0, "train_speed(s/it)": 60.0}
{"train_dataset": "10 samples", "model_parameter_info": "7000.0M Params", "last_model_checkpoint": null, "global_step": 2, "log_history": [{"loss": 3.0, "step": 1}, {"loss": 2.5, "step": 2}], "memory": 20.0}
""",
    "killed_9": """\
[2024-07-08 05:14:51,770] [INFO] [runner.py:568:main] cmd = python3 -u -m deepspeed.launcher.launch --world_info=eyJ9 train.py --deepspeed ds_z3_offload.json
[2024-07-08 05:14:55,997] [INFO] [launch.py:146:main] WORLD INFO DICT: {'n1': [0, 1]}
[2024-07-08 05:16:07,000] [INFO] [logging.py:96:log_dist] [Rank 0] DeepSpeed info: version=0.14.4, git-hash=unknown, git-branch=unknown
[2024-07-08 05:16:08,835] [INFO] [utils.py:803:see_memory_usage] Before initializing optimizer states
[2024-07-08 05:16:08,836] [INFO] [utils.py:804:see_memory_usage] MA 11.76 GB         Max_MA 11.76 GB         CA 11.77 GB         Max_CA 12 GB
[2024-07-08 05:16:08,837] [INFO] [utils.py:811:see_memory_usage] CPU Virtual Memory:  used = 240.43 GB, percent = 95.6%
[2024-07-08 05:17:33,201] [INFO] [launch.py:318:sigkill_handler] Killing subprocess 80
[2024-07-08 05:17:33,219] [ERROR] [launch.py:324:sigkill_handler] ['python3', '-u', 'train.py', '--local_rank=0'] exits with return code = -9
""",
    "batch_assertion": """\
[2024-07-08 05:14:51,770] [INFO] [runner.py:568:main] cmd = python3 -u -m deepspeed.launcher.launch --world_info=eyJ9 train.py --deepspeed ds_z3_offload.json
[2024-07-08 05:14:55,997] [INFO] [launch.py:146:main] WORLD INFO DICT: {'n1': [0, 1]}
Traceback (most recent call last):
  File "train.py", line 5, in <module>
AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size 64 != 4 * 8 * 1
[2024-07-08 05:17:33,219] [ERROR] [launch.py:324:sigkill_handler] ['python3', '-u', 'train.py', '--local_rank=0'] exits with return code = 1
""",
    "nanotron": """\
[default0]:01/01/2026 10:00:00 [INFO|DP=0|PP=0|TP=0|node-1]: iteration: 1 / 20 | consumed_tokens: 16.4K | elapsed_time_per_iteration_ms: 2K | tokens_per_sec: 8.19K | tokens_per_sec_per_gpu: 4.1K | global_batch_size: 8 | lm_loss: 9 | lr: 0.0001 | model_tflops_per_gpu: 10 | hardware_tflops_per_gpu: 10 | grad_norm: 1
[default0]:01/01/2026 10:00:02 [INFO|DP=0|PP=0|TP=0|node-1]: iteration: 2 / 20 | consumed_tokens: 32.8K | elapsed_time_per_iteration_ms: 1K | tokens_per_sec: 16.4K | tokens_per_sec_per_gpu: 8.2K | global_batch_size: 8 | lm_loss: 8 | lr: 0.0002 | model_tflops_per_gpu: 20 | hardware_tflops_per_gpu: 20 | grad_norm: 1
""",
    "nemo": """\
Training epoch 0, iteration 0/9 | lr: 1e-06 | global_batch_size: 8 | global_step: 0 | reduced_train_loss: 3.0 | train_step_timing in s: 5.0
Training epoch 0, iteration 1/9 | lr: 2e-06 | global_batch_size: 8 | global_step: 1 | reduced_train_loss: 2.5 | train_step_timing in s: 2.0 | consumed_samples: 16
""",
    "torchtitan": """\
[rank0]:[titan] 2026-01-01 10:00:00,000 - root - INFO - step:  1  loss:  9.0000  grad_norm:  1.0000  memory:  2.00GiB(2.50%)  tps: 1,000  tflops: 1.00  mfu: 0.10%
[rank0]:[titan] 2026-01-01 10:00:01,000 - root - INFO - step:  2  loss:  8.0000  grad_norm:  1.0000  memory:  2.00GiB(2.50%)  tps: 10,000  tflops: 10.00  mfu: 1.00%
""",
    "factory_json": """\
{"current_steps": 10, "total_steps": 20, "loss": 2.2, "lr": 1.3e-06, "epoch": 0.5, "percentage": 50.0, "elapsed_time": "0:00:30", "remaining_time": "0:00:30", "throughput": 13000.0, "total_tokens": 390000}
{"current_steps": 20, "total_steps": 20, "loss": 2.1, "lr": 0.0, "epoch": 1.0, "percentage": 100.0, "elapsed_time": "0:01:00", "remaining_time": "0:00:00", "throughput": 13000.0, "total_tokens": 780000}
""",
    "veomni": """\
iteration: 1 | consumed samples: 32 | elapsed time per iteration (ms): 2000.0 | throughput(samples/s): 16.0 | learning rate: 1.000000E-05 | global batch size:   32 | lm loss: 2.5000 | grad norm: 1.0000
iteration: 2 | consumed samples: 64 | elapsed time per iteration (ms): 1900.0 | throughput(samples/s): 16.8 | learning rate: 1.000000E-05 | global batch size:   32 | lm loss: 2.4000 | grad norm: 1.0000
""",
    "swift_out_of_memory": """\
run sh: `/usr/bin/python /opt/swift/cli/sft.py --model Qwen/Qwen2.5-7B-Instruct --train_type lora --lora_rank 8 --torch_dtype bfloat16 --per_device_train_batch_size 4 --gradient_accumulation_steps 16 --max_length 2048 --deepspeed zero3`
[INFO:swift] Successfully registered `/opt/swift/llm/dataset/data/dataset_info.json`.
[INFO:swift] rank: 0, local_rank: 0, world_size: 4, local_world_size: 4
[INFO:swift] model_parameter_info: PeftModelForCausalLM: 7635.8011M Params (20.1851M Trainable [0.2643%]), 0.0001M Buffers.
Train:   0%|          | 0/560 [00:00<?, ?it/s][rank0]: Traceback (most recent call last):
[rank0]:   File "/opt/swift/cli/sft.py", line 7, in <module>
[rank0]:     sft_main()
[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB
W0521 03:00:00.000 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 123 closing signal SIGTERM
E0521 03:00:01.000 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 0 (pid: 120) of binary: /usr/bin/python
Traceback (most recent call last):
  File "torchrun", line 8, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
sft.py FAILED
""",
    "swift_exception": """\
[INFO:swift] Start time of running main: 2025-05-24 10:00:00
Traceback (most recent call last):
  File "/opt/swift/cli/sft.py", line 7, in <module>
    sft_main()
ValueError: The model's dtype is not supported
""",
    "swift_console": """\
Train:   0%|          | 0/560 [00:00<?, ?it/s]
{'loss': 2.58519292, 'grad_norm': 17.12728882, 'learning_rate': 9.998e-05, 'memory(GiB)': 11.29, 'train_speed(iter/s)': 0.028085, 'epoch': 0.02, 'global_step/max_steps': '1/560', 'percentage': '1.00%', 'elapsed_time': '34s', 'remaining_time': '56m 45s'}
Train:   0%|          | 1/560 [00:34<5:00:00, 34.00s/it]
{'loss': 2.0, 'grad_norm': 1.6, 'learning_rate': 9.9e-05, 'memory(GiB)': 12.5, 'train_speed(iter/s)': 0.05, 'epoch': 0.04, 'global_step/max_steps': '11/560', 'percentage': '2.00%', 'elapsed_time': '2m 14s', 'remaining_time': '56m 45s'}
""",
    "word_before_bar": """\
***** Running training *****
  Num examples = 1,000
  Num Epochs = 1
  Instantaneous batch size per device = 2
  Total train batch size (w. parallel, distributed & accumulation) = 16
  Gradient Accumulation steps = 1
  Total optimization steps = 500
Train:   2%|2         | 10/500 [00:20<16:20,  2.00s/it]
{'loss': 2.1, 'grad_norm': 1.2, 'learning_rate': 1e-05, 'epoch': 0.01}
Map:  10%|#         | 500/5000 [00:02<00:20, 250.00it/s]
Train:   4%|4         | 20/500 [00:40<16:00,  2.00s/it]
{'loss': 2.0, 'grad_norm': 1.2, 'learning_rate': 1e-05, 'epoch': 0.02}
""",
    "rendezvous": """\
[2024-05-21 10:00:00,000] torch.distributed.run: [WARNING] master_addr is only used for static rdzv_backend
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    torch.distributed.init_process_group("nccl")
torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 1/3 clients joined.
""",
    "torchrun_killed": """\
Setting OMP_NUM_THREADS environment variable for each process to be 1 in default
***** Running training *****
  Total optimization steps = 100
ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 3 (pid: 4242) of binary: /usr/bin/python
Traceback (most recent call last):
  File "/usr/bin/torchrun", line 8, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Root Cause (first observed failure):
[0]:
  exitcode  : -9 (pid: 4242)
  traceback : Signal 9 (SIGKILL) received by PID 4242
""",
    "bash_killed": """\
***** Running training *****
  Total optimization steps = 100
./run.sh: line 12: 12345 Killed                  python train.py --bf16
""",
    "megatron_nan_gradient": """\
 iteration        1/     100 | elapsed time per iteration (ms): 2000.0 | global batch size:    32 | lm loss: 1.0E+01 | grad norm: 1.2 | number of skipped iterations:   0 | number of nan iterations:   0 |
 iteration        2/     100 | elapsed time per iteration (ms): 2000.0 | global batch size:    32 | lm loss: 0.0E+00 | grad norm: nan | number of skipped iterations:   0 | number of nan iterations:   0 |
""",
    "megatron_overflow": """\
 iteration        1/     100 | elapsed time per iteration (ms): 2000.0 | global batch size:    32 | lm loss: 1.0E+01 | grad norm: 1.2 | number of skipped iterations:   0 | number of nan iterations:   0 |
 iteration        2/     100 | elapsed time per iteration (ms): 2000.0 | global batch size:    32 | lm loss: 9.0E+00 | grad norm: inf | number of skipped iterations:   1 | number of nan iterations:   0 |
""",
    "dpo": """\
***** Running training *****
  Instantaneous batch size per device = 2
  Total train batch size (w. parallel, distributed & accumulation) = 16
  Gradient Accumulation steps = 2
  Total optimization steps = 10
{'loss': 0.69, 'grad_norm': 1.2, 'learning_rate': 1e-05, 'rewards/chosen': 0.1, 'rewards/rejected': 0.0, 'rewards/accuracies': 0.5, 'epoch': 0.01}
{'train_runtime': 40.0, 'train_samples_per_second': 4.0, 'train_steps_per_second': 0.25, 'train_loss': 0.69, 'epoch': 1.0}
""",
    "reward": """\
[2024-07-08 05:14:51,770] [INFO] [runner.py:568:main] cmd = python3 -u -m deepspeed.launcher.launch --world_info=eyJ9 step2_reward_model_finetuning/main.py --model_name_or_path facebook/opt-350m --per_device_train_batch_size 4 --max_seq_len 512 --gradient_accumulation_steps 1 --zero_stage 0
[2024-07-08 05:14:55,997] [INFO] [launch.py:146:main] WORLD INFO DICT: {'n1': [0, 1]}
***** Running training *****
[2023-04-18 03:36:10,000] [INFO] [timer.py:199:stop] epoch=0/micro_step=10/global_step=10, RunningAvgSamplesPerSec=20.0, CurrSamplesPerSec=20.0, MemAllocated=3.0GB, MaxMemAllocated=12.0GB
""",
    "torchtitan_settings": """\
[rank0]:[titan] 2026-01-11 20:13:44,956 - root - INFO - Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=8, cp=1, tp=1, ep=1, etp=1
[rank0]:[titan] 2026-01-11 20:13:45,000 - root - INFO - \x1b[34mModel llama3 8B \x1b[31msize: 8,030,261,248 total parameters\x1b[39m
[rank0]:[titan] 2026-01-11 20:13:45,000 - root - INFO - Applied full activation checkpointing to the model
[rank0]:[titan] 2026-01-11 20:13:45,000 - root - INFO - Trainer is initialized with local batch size 1, global batch size 8, gradient accumulation steps 1, sequence length 8192, total steps 1000 (warmup 200)
[rank0]:[titan] 2026-01-11 20:13:50,000 - root - INFO - \x1b[31mstep:  1  \x1b[32mloss: 12.2713  \x1b[38;2;180;60;0mgrad_norm:  3.6855  \x1b[36mmemory: 38.86GiB(40.91%)  \x1b[34mtps: 1,024  \x1b[36mtflops: 60.0  \x1b[35mmfu: 6.00%\x1b[39m
[rank0]:[titan] 2026-01-11 20:14:10,000 - root - INFO - \x1b[31mstep: 10  \x1b[32mloss:  9.2713  \x1b[38;2;180;60;0mgrad_norm:  1.6855  \x1b[36mmemory: 48.86GiB(50.91%)  \x1b[34mtps: 4,096  \x1b[36mtflops: 240.0  \x1b[35mmfu: 24.00%\x1b[39m
[rank0]:[titan] 2026-01-11 20:14:30,000 - root - INFO - \x1b[31mvalidate step: 10  \x1b[32mloss:  9.5  \x1b[36mmemory: 48.86GiB(50.91%)  \x1b[34mtps: 9,096\x1b[39m
[rank0]:[titan] 2026-01-11 20:14:30,000 - root - INFO - Training completed
""",
    "torchtitan_copies": """\
[rank0]:[titan] 2026-01-11 20:13:44,956 - root - INFO - Building device mesh with parallelism: pp=1, dp_replicate=2, dp_shard=8, cp=1, tp=2, ep=1, etp=1
[rank0]:[titan] 2026-01-11 20:13:50,000 - root - INFO - \x1b[31mstep:  1  \x1b[32mloss: 12.2713  \x1b[38;2;180;60;0mgrad_norm:  3.6855  \x1b[36mmemory: 38.86GiB(40.91%)  \x1b[34mtps: 1,024  \x1b[36mtflops: 60.0  \x1b[35mmfu: 6.00%\x1b[39m
""",
    "torchtitan_old": """\
[rank0]:2025-04-01 00:25:47,084 - root - INFO - step: 640/644 = 99.3789%  loss:  6.2116  memory: 87.04GiB(93.48%)  tps: 52,142  mfu: 3.09%
[rank0]:2025-04-01 00:25:59,617 - root - INFO - Training completed
""",
    "nemo_bars": """\
Epoch 0: :  98%|#########| 98/100 [10:42<00:13, reduced_train_loss=0.0180, global_step=97.00, consumed_samples=25088.0, train_step_timing in s=3.200]
Epoch 0: : 100%|##########| 100/100 [10:48<00:00, reduced_train_loss=0.0172, global_step=99.00, consumed_samples=25600.0, train_step_timing in s=3.130]
""",
    "veomni_bars": """\
Epoch 1/2:  10%|#         | 10/100 [00:10<01:30,  1.00s/it, total_loss: 2.50, grad_norm: 1.20, lr: 0.00]
Epoch 1/2:  20%|##        | 20/100 [00:20<01:20,  1.00s/it, total_loss: 2.40, grad_norm: 1.10, lr: 0.00]
Epoch 2/2:  10%|#         | 10/100 [00:10<01:30,  1.00s/it, total_loss: 2.30, grad_norm: 1.00, lr: 0.00]
""",
}
"""By what is difficult about them."""
