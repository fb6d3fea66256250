"""Conversations: what a model reads of them, and what it answers, bit by bit."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from dotformer.support.llama_files import rendered


class Chat:
    """A conversation with a model: its messages, and what the model has read."""

    def __init__(self, cache: Any, tokenizer: Tokenizer, template: str, system: str | None = None) -> None:
        """`cache` is an empty `ModernCache` of one row. ValueError: `system` has special tokens."""
        check_plain(tokenizer, system or "")
        self.cache, self.tokenizer, self.template = cache, tokenizer, template
        self.messages = [{"role": "system", "content": system}] if system else []
        self.text, self.end = "", tokenizer.token_to_id("<|im_end|>")

    def reply(
        self,
        content: str,
        length: int = 400,
        choose: Callable[[Tensor], Tensor] = lambda logits: logits.argmax(-1),
    ) -> Iterator[str]:
        """Say something; yields the answer bit by bit, of `length` tokens at most.

        `choose` takes logits (1, V) and returns a token (1,). ValueError for a message that is empty or has special
        tokens, and for a conversation that exceeds the model's `max_length`. Read an answer to its end, or close it,
        before the next.
        """
        check_plain(self.tokenizer, content)
        message = {"role": "user", "content": content}
        text = rendered(self.template, [*self.messages, message])
        new = self.tokenizer.encode(text.removeprefix(self.text)).ids
        longest = self.cache.model.config.max_length
        room = longest - self.cache.real.shape[1] - len(new)
        if room < 1:
            raise ValueError(f"the conversation exceeds max_length {longest} tokens")
        tokens, shown = [], ""
        try:
            logits = self.cache.read(torch.tensor([new]))
            for _ in range(min(length, room)):
                token = choose(logits)
                if token == self.end:
                    break
                tokens.append(int(token))
                logits = self.cache.step(token)
                answer = self.tokenizer.decode(tokens)
                if not answer.endswith("\ufffd"):  # half of a character
                    yield answer.removeprefix(shown)
                    shown = answer
        except KeyboardInterrupt:  # perhaps between two layers: the conversation will be read again
            self.cache = type(self.cache)(self.cache.model, torch.zeros(1, 0, dtype=torch.long))
            text = ""
            raise
        finally:
            answer = self.tokenizer.decode(tokens)
            self.messages += [message, {"role": "assistant", "content": answer}]
            self.text = text and text + answer


def check_plain(tokenizer: Tokenizer, text: str) -> None:
    """Raise ValueError for a text that has special tokens, with which it could pretend to be other messages."""
    for token in tokenizer.get_added_tokens_decoder().values():
        if token.content in text:
            raise ValueError(f"a message cannot have {token.content} in it, which is a token of the model's own")
