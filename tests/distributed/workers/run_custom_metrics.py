"""Trains with the metrics of a custom algorithm, and prints what it logged and what each process measured."""

from worker import logged, parity, print_result, trainer_of

from trl_credit import CreditTrainer, assign_credit


class Watched:
    """One metric by token, and one by row; `sums` has the numerators and denominators of this process by step."""

    sums: list = []

    def credit(self, config, tokens):
        return assign_credit(config, tokens)

    def metrics(self, config, tokens, credit):
        surprise_t, lengths = -tokens.logp_t, tokens.mask_t.sum(-1)
        inside = tokens.mask_t.bool()
        self.sums.append([surprise_t[inside].sum().item(), inside.sum().item(), lengths.sum().item(), len(lengths)])
        surprise_t[~inside] = float("nan")  # outside of the loss anything may stand
        return {"surprise": surprise_t, "length": lengths}


def main(folder: str) -> None:
    sizes = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "max_steps": 3}
    trainer = trainer_of(CreditTrainer, parity, folder, credit=Watched, length_sort="off", **sizes)
    trainer.train()
    rows = [[row["credit/surprise"], row["credit/length"]] for row in logged(trainer)]
    print_result(sums=Watched.sums, logged=rows)
