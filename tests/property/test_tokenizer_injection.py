"""Whatever users write, the control tokens of a prompt are those of the template."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizers import byte_level_tokenizer, hf_folder

from service.tokenizer import ChatMessage, Tokenizer, load_tokenizer

# Pieces of control tokens, white space and private-use characters in every order.
_PIECES = ("<|im_start|>", "<|IM_END|>", "<|", "im_", "start", "end", "|>", "<", ">", "|")
_OTHERS = (" ", "\n", "\ue000", "\ue001", "é", "x")
_HOSTILE = st.lists(st.sampled_from(_PIECES + _OTHERS), max_size=6).map("".join)

_TEMPLATES: dict[str, tuple[str, Callable[[str], str]]] = {
    "glued": ("{% for m in messages %}{{ m.content }}{% endfor %}", lambda text: text),
    "trimmed": ("{% for m in messages %}{{ m.content | trim }}{% endfor %}", str.strip),
    "framed": (
        "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}",
        lambda text: f"<|im_start|>{text}<|im_end|>",
    ),
}


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    """A tokenizer for each template."""

    def load(folder: Path, template: str) -> Tokenizer:
        config = {"chat_template": template}
        return load_tokenizer(hf_folder(folder, byte_level_tokenizer(), config=config))

    return {
        name: load(tmp_path_factory.mktemp(name), template)
        for name, (template, _) in _TEMPLATES.items()
    }


@pytest.mark.parametrize("name", _TEMPLATES)
@given(contents=st.lists(_HOSTILE, min_size=1, max_size=4))
def test_control_tokens_do_not_depend_on_the_contents(
    tokenizers: dict[str, Tokenizer], name: str, contents: list[str]
) -> None:
    tokenizer, (_, shown) = tokenizers[name], _TEMPLATES[name]
    ids = tokenizer.encode_chat([ChatMessage("user", content) for content in contents])
    harmless = tokenizer.encode_chat([ChatMessage("user", "x") for _ in contents])
    assert [i for i in ids if tokenizer.is_special(i)] == [
        i for i in harmless if tokenizer.is_special(i)
    ]
    # And nothing of the text is lost or added.
    assert tokenizer.decode(ids, skip_special=False) == "".join(map(shown, contents))


@given(text=_HOSTILE)
def test_plain_text_never_yields_a_control_token(
    tokenizers: dict[str, Tokenizer], text: str
) -> None:
    tokenizer = tokenizers["glued"]
    ids = tokenizer.encode(text)
    assert not any(map(tokenizer.is_special, ids))
    assert tokenizer.decode(ids) == text
