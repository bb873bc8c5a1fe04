"""transformers: a small language model from a configuration learns to count; nothing is fetched.

python examples/with_transformers.py
"""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from sidestream.integrations.transformers import asynchronous


class Counting(Dataset):
    def __len__(self):
        return 128

    def __getitem__(self, index):
        tokens = (torch.arange(6) + index) % 16
        return {"input_ids": tokens, "labels": tokens}


def main():
    config = GPT2Config(
        n_layer=1,
        n_head=2,
        n_embd=16,
        vocab_size=16,
        n_positions=8,
        bos_token_id=0,
        eos_token_id=0,
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=2,
            per_device_train_batch_size=8,
            learning_rate=0.01,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Counting())
        trainer = asynchronous(trainer)  # this line is all
        result = trainer.train()
    print(f"loss {result.training_loss:.4f}")


if __name__ == "__main__":
    main()
