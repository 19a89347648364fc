"""Follow the tokenizers and collators of `transformers`, which have no effects outside of a batch.

A call notes in the tokenizer how to pad and to truncate; each call does so anew.
"""

from __future__ import annotations

import sys
from types import FunctionType
from typing import TYPE_CHECKING, Any

from hasten.loader.proof import kinds, operators
from hasten.loader.proof.objects import attribute_of
from hasten.loader.proof.source import is_user_function
from hasten.loader.proof.values import Value, new
from hasten.loader.proof.word_list import words

if TYPE_CHECKING:
    from hasten.loader.proof.frame import Frame, Given

_COLLATORS = words("DefaultDataCollator DataCollatorWithPadding DataCollatorForTokenClassification")
_ENCODING = words("__call__ encode_plus batch_encode_plus prepare_for_model pad")
_OTHERS = words(
    "encode tokenize convert_tokens_to_ids convert_ids_to_tokens convert_tokens_to_string decode "
    "batch_decode build_inputs_with_special_tokens create_token_type_ids_from_sequences "
    "get_special_tokens_mask num_special_tokens_to_add"
)
_FIGURES = words("vocab_size model_max_length padding_side truncation_side pad_token_type_id") | {
    f"{name}_token{end}"
    for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
    for end in ("", "_id")
}


def call(body: Frame, one: Any, name: str, given: Given) -> Value:
    """Follow a call of a method of a tokenizer."""
    target = attribute_of(type(one), name)
    is_own = isinstance(target, FunctionType) and not is_user_function(target)
    if name not in _ENCODING | _OTHERS or not is_own:
        return body.gap(f"it calls .{name}() of {kinds.shown(one)}", given.node)
    for value in given.values:
        operators.implied(body, value, given.node)
    made = sys.modules[kinds.TOKENIZERS].BatchEncoding if name in _ENCODING else None
    return new(kind=made)


def has_figure(one: Any, name: str) -> bool:
    """Return whether this is a number or text that a tokenizer has, such as `pad_token_id`."""
    return name in _FIGURES and kinds.is_tokenizer(one)


def collate(body: Frame, one: Any, given: Given) -> Value | None:
    """Follow a call of a collator that pads samples, by a tokenizer if by any; None for others.

    That of a `Trainer` first leaves out what the model does not take.
    """
    name = f"{type(one).__module__}.{type(one).__name__}"
    if name == "transformers.trainer_utils.RemoveColumnsCollator":
        return body.follower.live(body, one.data_collator, given)
    is_known = name.removeprefix("transformers.data.data_collator.") in _COLLATORS
    pads = not hasattr(one, "tokenizer") or kinds.is_tokenizer(one.tokenizer)
    return new() if is_known and pads else None
