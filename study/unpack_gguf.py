"""Convert a GGUF file to a float32 model in Hugging Face format, for `make demo-llm`. Needs gguf and accelerate.

    python study/unpack_gguf.py model.gguf --out folder
"""
import argparse
import os
import shutil
import sys
from pathlib import Path

import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from records import die, first_line, run_script  # noqa: E402


def unpack_gguf(file, folder):
    """Write the model and the tokenizer of a GGUF file to `folder`.

    A GGUF file only names the rule that splits text into words, and transformers ignores the name. So we set the rule.
    """
    from tokenizers import pre_tokenizers
    transformers.utils.logging.disable_progress_bar()
    file = Path(file)
    part = Path(f"{folder}.part")
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    splits = {
        "gpt-2": words,
        "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words]),
    }
    try:
        from gguf import GGUFReader
        split = splits[GGUFReader(file).fields["tokenizer.ggml.pre"].contents()]
        tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        lm = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    except (ImportError, OSError, ValueError, LookupError, TypeError, RuntimeError) as error:
        die(f"{file}: cannot be unpacked ({first_line(error)}); it needs a complete GGUF file, words split as in "
            f"{' or '.join(splits)}, and the packages gguf and accelerate")
    tokenizer.backend_tokenizer.pre_tokenizer = split
    del lm.hf_quantizer, lm.config.quantization_config    # or it would be saved as a quantised model
    shutil.rmtree(part, ignore_errors=True)
    lm.save_pretrained(part)
    tokenizer.save_pretrained(part)
    os.replace(part, folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("file", help="the GGUF file")
    parser.add_argument("--out", required=True, help="folder for the model; if it exists, nothing is done")
    args = parser.parse_args()
    if not Path(args.out).exists():
        unpack_gguf(args.file, args.out)


if __name__ == "__main__":
    run_script(main)
