"""The Trainer of transformers: torchrun --nproc-per-node 2 examples/transformers_trainer.py

Two sites hold sequences that count in different strides. At each site the Trainer sees one process only, so it neither
wraps the model nor splits the data. Only the optimiser communicates: the sites exchange messages after every third
step.
"""

import os

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import stgt
from stgt.torch import DistributedOptimizer, init, node_split

rank = init()  # the process group, from torchrun's environment
for name in ("LOCAL_RANK", "WORLD_SIZE"):  # without these, the Trainer does not average gradients with other processes
    os.environ.pop(name, None)

strides = torch.arange(640) % 4
starts = torch.arange(640) // 4 % 16
tokens = (starts[:, None] + strides[:, None] * torch.arange(12)) % 16
dataset = [{"input_ids": row, "labels": row} for row in tokens]
mine = node_split(dataset, "label", labels=strides, classes=2)  # this node's share: two of the four strides

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=16,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=1,
    num_attention_heads=2,
    max_position_embeddings=16,
)
steps = 90  # 30 rounds of tau = 3
arguments = TrainingArguments(
    f"runs/trainer/node-{rank}",  # one per node, because every process is rank zero for the Trainer
    max_steps=steps,  # the same on every node; the length of an epoch depends on the node's data
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    max_grad_norm=1.0,  # clips before the correction is added
    save_steps=45,  # each node resumes from its own folder: trainer.train(resume_from_checkpoint=True)
    logging_strategy="no",
    report_to="none",
    disable_tqdm=True,
    dataloader_pin_memory=False,
)
assert arguments.world_size == 1
model = LlamaForCausalLM(config).to(arguments.device)  # before DistributedOptimizer
model.should_save_on_this_rank = lambda is_main_process: is_main_process  # else only torch's rank 0 saves the weights
base = torch.optim.AdamW(model.parameters(), lr=5e-3)
opt = DistributedOptimizer(base, algorithm=stgt.STGT(tau=3), topology="complete", model=model)
trainer = Trainer(model, arguments, train_dataset=mine, eval_dataset=dataset, optimizers=(opt, None))
trainer.train()  # the Trainer makes its own scheduler, on `opt`

with opt.averaged():  # all nodes must enter; they evaluate the average of their models
    found = trainer.evaluate()
    if rank == 0:
        trainer.save_model("runs/trainer/averaged")
if rank == 0:
    print(f"loss of the averaged model on all strides: {found['eval_loss']:.3f} after {opt.round} rounds")
