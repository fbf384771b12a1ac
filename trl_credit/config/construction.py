"""How a configuration is made: from keywords, with a hint at a wrong one, and from a configuration of TRL."""

import inspect
from dataclasses import fields
from typing import Any, Self

import trl
from trl import GRPOConfig

from ..support.errors import raise_together
from ..support.functions import errors_named, is_custom_function, resolve_function
from ..support.retired import meant_by
from ..support.startup import quiet_start
from .algorithm import Algorithm, algorithm_of, class_of, with_settings, with_settings_of
from .from_trl import settings_of_trl


class Construction:
    """The constructors of [`CreditConfig`], without its fields, and its algorithm.

    Keywords are checked in `__new__`, since each subclass that is a dataclass gets an `__init__` of its own. The check
    reads the signature of that `__init__`, which a subclass may also have written itself.

    Attributes:
        updates_per_batch: Optimizer steps that a preset makes of a generation batch, see [`fill_in_updates`].

    Raises:
        TypeError: the constructor does not take a keyword; the message names the field that was meant.
    """

    updates_per_batch = 1

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        cls = with_settings_of(kwargs.get("credit", cls.credit), cls, kwargs)
        parameters = inspect.signature(cls.__init__).parameters
        if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            hints = {name: meant_by(name, list(parameters)[1:]) for name in kwargs if name not in parameters}
            of_trl = f", nor has GRPOConfig of trl {trl.__version__}"
            raise_together([TypeError(f"{cls.__name__} has no field {x!r}{hints[x] or of_trl}") for x in hints])
        quiet_start()  # TRL's constructor uses them
        return super().__new__(cls)

    def __reduce_ex__(self, protocol: Any) -> tuple:
        """Pickles the class of a module: one with the settings of an algorithm is made again where that is known."""
        make, arguments, *state = super().__reduce_ex__(protocol)
        plain = vars(type(self)).get("plain_class")
        return (make, arguments, *state) if plain is None else (_made_again, (plain, self.credit), *state)

    def fill_in_updates(self) -> None:
        """Sets `steps_per_generation` to `updates_per_batch` times `gradient_accumulation_steps`.

        Only if nothing that decides about the number of updates was set: `steps_per_generation`,
        `generation_batch_size` and `num_iterations` have their defaults. TRL would make one update then.
        """
        is_default = self.num_iterations == 1 and self.steps_per_generation is self.generation_batch_size is None
        if self.updates_per_batch > 1 and is_default:
            self.steps_per_generation = self.updates_per_batch * self.gradient_accumulation_steps

    def algorithm(self) -> Algorithm | None:
        """The custom algorithm of `credit`, newly made, so without state; `None` for the knobs.

        Raises:
            ValueError: there is no such function or class, or its parts do not go together.
            FunctionRaised: the class refused its settings.
        """
        if not is_custom_function(self.credit):
            return None
        part = resolve_function(self.credit, what="credit", known=(), reload=False)
        with errors_named(part, f"credit {self.credit!r}", kept=(ValueError,)):
            return algorithm_of(part, self, name=self.credit)

    @classmethod
    def from_trl(cls, args: GRPOConfig, **knobs: Any) -> Self:
        """A configuration of this class with the settings of a configuration of TRL, which is left as it is.

        What was set in `args` is taken over, and all other fields have this class's defaults. A field of `args` that
        has TRL's default counts as left out, also if it was set by hand: to keep TRL's default where this class has
        another one, name it, as in `STraceConfig.from_trl(args, loss_type="dapo", beta=0.0)`. The same holds for a
        value that TRL computes from other fields (see `trl-credit help coming_from_trl`).

        Args:
            args ([`~trl.GRPOConfig`]):
                The configuration of a run with TRL's `GRPOTrainer`, or of a subclass.
            **knobs:
                Fields of this class, which override those of `args`.

        Raises:
            TypeError: `args` is no configuration of TRL, or sets a field that this class lacks.
            ValueError: what the constructor refuses, such as a knob without effect.
        """
        if not isinstance(args, GRPOConfig) or isinstance(args, Construction):
            kind = getattr(args, "__name__", type(args).__name__)
            raise TypeError(f"args is {kind}, not a GRPOConfig of TRL: give your settings to {cls.__name__} itself.")
        settings, own = settings_of_trl(args), {f.name for f in fields(cls)}
        if lacking := [name for name in settings if name not in own]:
            raise TypeError(f"args sets {', '.join(lacking)}, which {cls.__name__} lacks: declare it in a subclass.")
        if "generation_batch_size" in knobs:  # TRL takes one of the two
            settings.pop("steps_per_generation", None)
        return cls(**settings | knobs)


def _made_again(plain: type, credit: Any) -> Any:
    """A configuration without values, with the settings of the algorithm if this process has looked it up."""
    algorithm = class_of(credit)
    return object.__new__(plain if algorithm is None else with_settings(plain, algorithm))
