"""Batches on a CPU, in C++ of our own: no Python from one end of a step to the other.

    opening.py     which backend computes a model, and what that takes
    base.py        what backends share: blocks, KV on disk
    decoder.py     the native decoder: weights as they are held, and steps with them
    attention.py   kernels of attention
    experts.py     mixtures of experts
    delta.py       linear attention
    library.py     the decoder's library behind ctypes
    build.py       libraries: a wheel's, or compiled here
    csrc/          the C++
    openvino/      what the decoder does not do yet, as graphs of OpenVINO; imported only where it is opened

In csrc/:

    tiles.h          AMX tiles, or loops that do the same, for tests on any machine
    vectors.h        sixteen floats at once
    lanes.h          a register of the CPU's own width
    workers.h        threads
    layout.h         the order of numbers in memory
    ggml_types.h     quantised rows as GGUF files hold them
    packed_ggml.h    the same in the order of products, in strips of columns
    grouped.h        rows in bytes, and their products with strips
    outliers.h       channels too large for one byte
    quants.h         weights as they are held, and as tiles
    rows.h           rows as tiles or grouped
    matmul.h         their products with weights
    decoder.h        a step: from token ids to logits
    decoder.cpp      the C interface
    attention_tiles.cpp   attention for AMX: keys and values stored as tiles
    attention.cpp    attention on any CPU: windows, sinks and latents too
    experts.cpp, delta.cpp   experts and the gated delta rule, for graphs
    tbb/             what kernels use of TBB, on our threads
"""
