"""Writes the trial model's weights as a GGUF file of bfloat16, for llama.cpp: the file that the model
was fetched from, with every tensor dequantized.

    python -m tools.peers.gguf_file SOURCE TARGET
"""

import sys
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, Keys
from gguf.quants import dequantize, quantize

BF16 = GGMLQuantizationType.BF16
SKIPPED = (Keys.General.ARCHITECTURE, Keys.General.FILE_TYPE, Keys.General.QUANTIZATION_VERSION)


def write_bf16(source: Path, target: Path) -> None:
    """Copy all keys, and all tensors: matrices as bfloat16, vectors as float32."""
    reader = GGUFReader(source)
    architecture = reader.fields[Keys.General.ARCHITECTURE].contents()
    writer = GGUFWriter(target, architecture)
    for field in reader.fields.values():
        if field.name in SKIPPED or field.name.startswith("GGUF."):
            continue
        inner = field.types[-1] if field.types[0] is GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=inner)
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if values.ndim == 1:
            writer.add_tensor(tensor.name, values)
        else:
            writer.add_tensor(tensor.name, quantize(values, BF16), raw_dtype=BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    write_bf16(Path(sys.argv[1]), Path(sys.argv[2]))
