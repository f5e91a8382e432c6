"""A GGUF file as a model in Hugging Face format and float32, for `make demo-llm`. Needs the packages gguf and accelerate.

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
from records import die, first_line  # noqa: E402


def unpack_gguf(file, folder):
    """Write the model and the tokenizer in a GGUF file to `folder`, in Hugging Face format and float32.

    What transformers reads there of a tokenizer lacks how text is split into words, which a GGUF gives by name only.
    """
    from tokenizers import pre_tokenizers
    transformers.utils.logging.disable_progress_bar()
    file, part, words = Path(file), Path(f"{folder}.part"), pre_tokenizers.ByteLevel(add_prefix_space=False)
    splits = {"gpt-2": words, "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])}
    try:
        from gguf import GGUFReader
        split = splits[GGUFReader(file).fields["tokenizer.ggml.pre"].contents()]
        tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        lm = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    except (ImportError, OSError, ValueError, LookupError, TypeError, RuntimeError) as error:
        die(f"{file}: not a whole GGUF file of a model that splits words as {' or '.join(splits)} does, or the "
            f"packages gguf and accelerate are missing ({first_line(error)})")
    tokenizer.backend_tokenizer.pre_tokenizer = split
    del lm.hf_quantizer, lm.config.quantization_config    # else it would be saved as a quantised model
    shutil.rmtree(part, ignore_errors=True)
    lm.save_pretrained(part)
    tokenizer.save_pretrained(part)
    os.replace(part, folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", help="the GGUF file")
    parser.add_argument("--out", required=True, help="folder of the model; one that is there is kept")
    args = parser.parse_args()
    if not Path(args.out).exists():
        unpack_gguf(args.file, args.out)


if __name__ == "__main__":
    main()
