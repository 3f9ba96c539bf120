"""Qwen2.5-VL, its text part: the Qwen2 block whose rope turns by three position axes. Pictures are not read."""

from legato.models.config import Config
from legato.models.parts import attention, decoder, gated_mlp, head_dim, late_windows, pre_norm
from legato.models.rope import axis_rope
from legato.models.spec import Arch

ARCHITECTURES = ("Qwen2_5_VLForConditionalGeneration",)


def arch(c: Config) -> Arch:
    c.unused("vision_config", *(f"{name}_token_id" for name in ("image", "video", "vision_start", "vision_end")))
    text = c.section("text_config")
    rotary, mlp = axis_rope(text, head_dim(text)), gated_mlp(text)
    text.flag("tie_word_embeddings", c.flag("tie_word_embeddings"))
    layers = [pre_norm(text, attention(text, rope=rotary, window=w, qkv_bias=True), mlp) for w in late_windows(text)]
    result = decoder(text, layers, runs=False, ignored=("visual.*",))
    text.finish()
    return result
