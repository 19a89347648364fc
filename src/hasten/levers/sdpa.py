"""sdpa: one fused kernel for attention in Transformers models that are set to "eager".

Helps: models of the transformers library with `attn_implementation="eager"` and long sequences:
    the matrix of weights is never written to memory.
Hurts: short sequences. Attention that a script writes by hand, softmax(QK)V, cannot be replaced
    from outside, and `nn.MultiheadAttention` does this by itself unless it is asked for its
    weights. Calls with `output_attentions=True` stay eager.
Maths: distribution. The kernel sums in another order, and draws dropout in its own way.
Source: https://huggingface.co/docs/transformers/attention_interface
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hasten.lever import Lever, undo_all, unless
from hasten.records import Effect, Phase, Scope
from hasten.root_calls.own_code import mention

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.lever import ScriptContext, Training

_WEIGHTS = ("attentions", "output_attentions")
_WHY_NOT = {
    "eager": "",
    "eager alone": "the model has no other attention than its eager one",
    "weights": "the script asks for the attention weights, which the fused kernel never has",
    "sdpa": "the model uses scaled_dot_product_attention already",
    "MultiheadAttention": "nn.MultiheadAttention takes the fused kernel by itself where "
    "need_weights=False, and who reads its weights cannot be seen from outside",
}


def why_not(context: ScriptContext) -> str:
    """Say why there is nothing to try; empty where there is."""
    name = context.traits.model.attention
    if name is None:
        return "no transformers model was seen; other attention cannot be replaced from outside"
    return _WHY_NOT.get(name, f"the script has chosen {name} for its attention")


def _exchangeable(part: Any) -> bool:
    """Return whether this is a model whose eager attention the library can replace."""
    config = getattr(part, "config", None)
    if getattr(config, "_attn_implementation", None) != "eager":
        return False
    if getattr(config, "output_attentions", False) or not getattr(part, "_supports_sdpa", False):
        return False
    if getattr(config, "attn_logit_softcapping", None):  # the fused kernel has no such cap
        return False
    able = getattr(part, "_can_set_attn_implementation", lambda: True)
    return hasattr(part, "set_attn_implementation") and bool(able())


def _configs(module: Any) -> list[Any]:
    """Return every configuration in a module that names its attention, those inside included."""
    found: dict[int, Any] = {}
    waiting = [getattr(part, "config", None) for part in module.modules()]
    while waiting:
        config = waiting.pop()
        if id(config) not in found and hasattr(config, "_attn_implementation"):
            found[id(config)] = config
            waiting += vars(config).values()
    return list(found.values())


def _attention(config: Any) -> dict[str, Any]:
    """Return what a configuration says about attention, whatever its release calls it."""
    return {name: value for name, value in vars(config).items() if name.startswith("_attn")}


def _say(config: Any, said: dict[str, Any]) -> None:
    """Make a configuration say exactly this about attention."""
    for name in _attention(config).keys() - said.keys():
        delattr(config, name)
    vars(config).update(said)


class _Exchanges:
    """Configurations that were changed: what each said before, and what it says now."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._said: dict[int, tuple[Any, dict[str, Any], dict[str, Any]]] = {}

    def exchange(self, module: Any) -> None:
        """Switch to the fused kernel in all models inside a root module, or in none of them."""
        models = [part for part in module.modules() if _exchangeable(part)]
        if models and (where := mention(_WEIGHTS)):
            self._training.excuse(RuntimeError(f"attention stays eager: {where}"))
            return
        own = [(config, _attention(config)) for config in _configs(module) if models]
        try:
            for model in models:
                if model.config._attn_implementation == "eager":
                    model.set_attn_implementation("sdpa")
        except Exception:
            for config, said in own:
                _say(config, said)
            raise
        for config, said in own:
            now = _attention(config)
            if now != said:
                _, first, _ = self._said.get(id(config), (config, said, now))
                self._said[id(config)] = (config, first, now)

    def call(self, module: Any, call: Callable[[Any, Any], Any], args: Any, kwargs: Any) -> Any:
        """Make a root call; one that asks for the attention weights is made as it was."""
        if not kwargs.get("output_attentions"):
            return call(args, kwargs)
        inside = [self._said[id(c)] for c in _configs(module) if id(c) in self._said]
        for config, own, _ in inside:
            _say(config, own)
        try:
            return call(args, kwargs)
        finally:
            for config, _, now in inside:
                _say(config, now)

    def undo(self) -> None:
        """Restore what every configuration said before."""
        for config, own, _ in self._said.values():
            _say(config, own)
        self._said.clear()


def apply(training: Training, setting: bool) -> Callable[[], None]:
    """Replace the attention of every root module."""
    exchanges = _Exchanges(training)
    undos = [
        training.on_root(exchanges.exchange),
        training.on_call(exchanges.call),
        exchanges.undo,
    ]

    return undo_all(undos)


LEVER = Lever(
    name="sdpa",
    phases=frozenset({Phase.FORWARD, Phase.BACKWARD}),
    effect=Effect.DISTRIBUTION,
    scope=Scope.STEP,
    settings=unless(why_not, True),
    gain_ratio=2.0,
    why_not=why_not,
    snippet=lambda _: 'model.set_attn_implementation("sdpa")',
    settle_count=1,
    apply=apply,
    edit="models.sdpa",
)
